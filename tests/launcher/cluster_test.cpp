#include "launcher/cluster.h"

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
