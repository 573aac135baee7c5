#include "launcher/cli/cluster.h"

#include <gtest/gtest.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

class PlaceTest : public ::testing::Test {
 protected:
  void set(const char* name, const char* value) {
    names_.push_back(name);
    env::set(name, value);
  }
  void TearDown() override {
    for (const char* name : names_) env::set(name, std::nullopt);
  }
  std::vector<const char*> names_;
};

TEST_F(PlaceTest, OneLockrunPerMachine) {
  EXPECT_FALSE(place_from_environment());
  set("SLURM_STEP_ID", "1");
  set("SLURM_JOB_ID", "12345");
  set("SLURM_STEP_NUM_NODES", "3");
  set("SLURM_STEP_NUM_TASKS", "3");
  set("SLURM_NODEID", "2");
  set("SLURM_STEP_NODELIST", "n[7-9]");
  const auto place = place_from_environment();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->nodes, 3);
  EXPECT_EQ(place->node_rank, 2);
  EXPECT_EQ(place->master_addr, "n7");
  EXPECT_EQ(place->master_port, 20000 + (16 * 12345 + 1) % 10000);
  set("SLURM_STEP_NUM_TASKS", "6");
  EXPECT_THROW(place_from_environment(), ValueError);
}

TEST_F(PlaceTest, SeveralLockrunsOnAMachineAreRefused) {
  set("MPI_LOCALNRANKS", "2");
  set("PMI_SIZE", "2");
  EXPECT_THROW(place_from_environment(), ValueError);
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  set("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_THROW(place_from_environment(), ValueError);
}

TEST_F(PlaceTest, MpiexecDoesNotSayWhereTheFirstMachineIs) {
  set("PMI_RANK", "1");
  set("PMI_SIZE", "2");
  set("MPI_LOCALNRANKS", "1");
  EXPECT_THROW(place_from_environment(), ValueError);
  set("MASTER_ADDR", "first");
  const auto place = place_from_environment();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->nodes, 2);
  EXPECT_EQ(place->node_rank, 1);
  EXPECT_EQ(place->master_addr, "first");
  EXPECT_EQ(place->master_port, 0);
}

TEST_F(PlaceTest, PodsOfAnIndexedJobAreNumbered) {
  EXPECT_FALSE(place_in_indexed_job(2, "first"));
  set("JOB_COMPLETION_INDEX", "1");
  EXPECT_FALSE(place_in_indexed_job(1, "first"));  // pods with a job each
  EXPECT_THROW(place_in_indexed_job(2, ""), ValueError);
  const auto by_flag = place_in_indexed_job(2, "first");
  ASSERT_TRUE(by_flag);
  EXPECT_EQ(by_flag->node_rank, 1);
  EXPECT_EQ(by_flag->master_addr, "first");
  EXPECT_EQ(by_flag->master_port, 0);
  set("MASTER_ADDR", "train-0.train");
  set("MASTER_PORT", "1234");
  const auto by_variables = place_in_indexed_job(2, "");
  ASSERT_TRUE(by_variables);
  EXPECT_EQ(by_variables->master_addr, "train-0.train");
  EXPECT_EQ(by_variables->master_port, 1234);
  set("JOB_COMPLETION_INDEX", "2");
  EXPECT_THROW(place_in_indexed_job(2, "first"), ValueError);
}

TEST_F(PlaceTest, AnAllocationWithoutSrunUsesOneNode) {
  EXPECT_EQ(unused_slurm_nodes(), "");
  set("SLURM_JOB_ID", "12345");
  set("SLURM_JOB_NUM_NODES", "1");
  EXPECT_EQ(unused_slurm_nodes(), "");
  set("SLURM_JOB_NUM_NODES", "2");
  EXPECT_NE(unused_slurm_nodes().find("SLURM gave this job 2 nodes"), std::string::npos);
  set("SLURM_STEP_ID", "0");
  EXPECT_EQ(unused_slurm_nodes(), "");
}

TEST(ClusterTest, ListsOfHosts) {
  const auto hosts = parse_hosts("# ours\na slots=3 max_slots=4\n\n b\n", "file");
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].name, "a");
  EXPECT_EQ(hosts[0].slots, 3);
  EXPECT_EQ(hosts[1].name, "b");
  EXPECT_EQ(hosts[1].slots, 1);
  for (const char* text : {"", "a:0", "a:x", ":2", "a slots=", ",", "-oProxyCommand=x:1"}) {
    EXPECT_THROW(parse_hosts(text, "file"), ValueError) << text;
  }
}

TEST(ClusterTest, AHostThatIsNamedAgainGetsMoreSlots) {
  const auto hosts = parse_hosts("a,b:2,a:3", "-H");
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].slots, 4);
  EXPECT_EQ(hosts[1].slots, 2);
}

TEST(ClusterTest, RanksAreDealtInTheOrderOfHosts) {
  const auto all = parse_hosts("a:3,b:2,c:9", "-H");
  EXPECT_EQ(deal_ranks(all, 0).size(), 3u);
  const auto five = deal_ranks(all, 5);
  ASSERT_EQ(five.size(), 2u);
  EXPECT_EQ(five[1].slots, 2);
  const auto four = deal_ranks(all, 4);
  ASSERT_EQ(four.size(), 2u);
  EXPECT_EQ(four[1].slots, 1);
  EXPECT_THROW(deal_ranks(all, 15), ValueError);
}

TEST(ClusterTest, ThisMachineIsFoundByNameOrAddress) {
  const auto hosts = parse_hosts("a:3,me@b:2,10.0.0.3", "-H");
  EXPECT_EQ(find_host(hosts, {"b", "10.0.0.2"}), 1u);
  EXPECT_EQ(find_host(hosts, {"x", "10.0.0.3"}), 2u);
  EXPECT_EQ(find_host(hosts, {"x"}), std::nullopt);
}

}  // namespace
}  // namespace lockstep::launcher
