#include "launcher/cluster.h"

#include <gtest/gtest.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

class SlurmTest : public ::testing::Test {
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

TEST(ClusterTest, FirstHostOfSlurmsLists) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("node[01-03,5],x"), "node01");
  EXPECT_EQ(first_host("rack[1-2]n[03,5]-ib"), "rack1n03-ib");
  EXPECT_EQ(first_host("node[4"), "node4");
}

TEST_F(SlurmTest, OneLockrunPerMachine) {
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
  EXPECT_EQ(place->master_port, 20000 + (12345 + 131) % 10000);
  set("SLURM_STEP_NUM_TASKS", "6");
  EXPECT_THROW(place_from_environment(), ValueError);
}

TEST_F(SlurmTest, SeveralLockrunsOfMpirunAreRefused) {
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  EXPECT_THROW(place_from_environment(), ValueError);
}

TEST(ClusterTest, ListsOfHosts) {
  const auto hosts = parse_hosts("# ours\na slots=3 max_slots=4\n\n b\n", "file");
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].name, "a");
  EXPECT_EQ(hosts[0].slots, 3);
  EXPECT_EQ(hosts[1].name, "b");
  EXPECT_EQ(hosts[1].slots, 1);
  for (const char* text : {"", "a:0", "a:x", ":2", "a slots=", ","}) {
    EXPECT_THROW(parse_hosts(text, "file"), ValueError) << text;
  }
}

}  // namespace
}  // namespace lockstep::launcher
