#include "lockstep/job/launch_environment.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/env.h"

namespace lockstep::job {
namespace {

std::map<std::string, std::string> as_map(const std::vector<std::string>& entries) {
  std::map<std::string, std::string> result;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    EXPECT_TRUE(result.emplace(entry.substr(0, equals), entry.substr(equals + 1)).second)
        << entry << " twice";
  }
  return result;
}

/// The second of two nodes with two ranks each.
LaunchEnvironment second_node() {
  LaunchEnvironment job;
  job.local_world_size = 2;
  job.group_rank = 1;
  job.group_world_size = 2;
  job.rank = 2;
  job.world_size = 4;
  job.role = "trainer";
  job.run_id = "id7";
  job.master_port = 1234;
  job.restart_count = 1;
  job.max_restarts = 3;
  job.threads = 8;
  job.master_addr = "127.0.0.1";
  job.agent_store = true;
  job.signals = "SIGTERM,SIGINT";
  return job;
}

TEST(LaunchEnvironmentTest, IsWhatTorchrunGives) {
  const std::map<std::string, std::string> expected = {{"RANK", "3"},
                                                       {"LOCAL_RANK", "1"},
                                                       {"WORLD_SIZE", "4"},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"GROUP_RANK", "1"},
                                                       {"GROUP_WORLD_SIZE", "2"},
                                                       {"ROLE_RANK", "3"},
                                                       {"ROLE_WORLD_SIZE", "4"},
                                                       {"ROLE_NAME", "trainer"},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"MASTER_PORT", "1234"},
                                                       {"TORCHELASTIC_RESTART_COUNT", "1"},
                                                       {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                                       {"TORCHELASTIC_RUN_ID", "id7"},
                                                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                                       {"TORCHELASTIC_ERROR_FILE", "/scratch/1/error.json"},
                                                       {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT"},
                                                       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                                       {"OMP_NUM_THREADS", "8"}};
  LaunchEnvironment told = second_node().of_local_rank(1);
  told.error_file = "/scratch/1/error.json";
  EXPECT_EQ(as_map(told.to_env({})), expected);
}

TEST(LaunchEnvironmentTest, ReplacesStaleVariablesAndKeepsTheUsers) {
  LaunchEnvironment job = second_node();
  job.segment_fd = 9;
  const auto environment =
      as_map(job.to_env({"RANK=77", "RANKING=kept", "OMP_NUM_THREADS=3", "LOCKSTEP_SEGMENT_FD=5",
                         "LOCKSTEP_TERMINAL=/dev/tty1", "LOCKSTEP_TERMINAL_COLUMNS=90", "A=b=c"}));
  EXPECT_EQ(environment.at("RANK"), "2");
  EXPECT_EQ(environment.at("RANKING"), "kept");
  EXPECT_EQ(environment.at("OMP_NUM_THREADS"), "3");
  EXPECT_EQ(environment.at("LOCKSTEP_SEGMENT_FD"), "9");
  EXPECT_FALSE(environment.contains("LOCKSTEP_TERMINAL"));
  EXPECT_FALSE(environment.contains("LOCKSTEP_TERMINAL_COLUMNS"));
  EXPECT_EQ(environment.at("A"), "b=c");
}

TEST(LaunchEnvironmentTest, VirtualLocalRanksSeeOneGpu) {
  LaunchEnvironment job = second_node();
  job.virtual_local_rank = true;
  EXPECT_EQ(as_map(job.of_local_rank(1).to_env({})).at("LOCAL_RANK"), "0");
  EXPECT_EQ(as_map(job.of_local_rank(1).to_env({})).at("CUDA_VISIBLE_DEVICES"), "1");
  EXPECT_EQ(as_map(job.of_local_rank(1).to_env({"CUDA_VISIBLE_DEVICES=4,GPU-b"})).at("CUDA_VISIBLE_DEVICES"),
            "GPU-b");
}

TEST(LaunchEnvironmentTest, SeveralMachinesUseTheAgreedInterface) {
  LaunchEnvironment job = second_node();
  job.interface = "eth1";
  const auto environment = as_map(job.to_env({"NCCL_SOCKET_IFNAME=ib0"}));
  EXPECT_EQ(environment.at("GLOO_SOCKET_IFNAME"), "eth1");
  EXPECT_EQ(environment.at("NCCL_SOCKET_IFNAME"), "ib0");
}

TEST(LaunchEnvironmentTest, GlooGetsANameInPlaceOfARuleThatItDoesNotKnow) {
  EXPECT_EQ(as_map(second_node().to_env({"GLOO_SOCKET_IFNAME==lo"})).at("GLOO_SOCKET_IFNAME"), "lo");
  EXPECT_EQ(as_map(second_node().to_env({"GLOO_SOCKET_IFNAME=lo,x"})).at("GLOO_SOCKET_IFNAME"), "lo,x");
  EXPECT_EQ(as_map(second_node().to_env({"GLOO_SOCKET_IFNAME==none"})).at("GLOO_SOCKET_IFNAME"), "=none")
      << "an error for the rank";
  const auto other = as_map(second_node().to_env({"GLOO_SOCKET_IFNAME=^none"})).at("GLOO_SOCKET_IFNAME");
  EXPECT_NE(other.front(), '^');
  LaunchEnvironment job = second_node();
  job.interface = "eth1";
  EXPECT_EQ(as_map(job.to_env({"GLOO_SOCKET_IFNAME=^lo"})).at("GLOO_SOCKET_IFNAME"), "eth1")
      << "the one to the rendezvous, if it may be";
}

/// Sets `entries` in this process for as long as it lives.
class InEnvironment {
 public:
  explicit InEnvironment(const std::vector<std::string>& entries) : entries_(as_map(entries)) {
    for (const auto& [name, value] : entries_) env::set(name, value);
  }
  ~InEnvironment() {
    for (const auto& entry : entries_) env::set(entry.first, std::nullopt);
  }

 private:
  std::map<std::string, std::string> entries_;
};

TEST(LaunchEnvironmentTest, ARankReadsWhatItWasTold) {
  LaunchEnvironment told = second_node().of_local_rank(1);
  told.segment_fd = 9;
  told.local_addr = "10.1.2.3";
  told.error_file = "/scratch/1/error.json";
  told.timeline_parts = "/parts";
  for (const bool is_virtual : {false, true}) {
    told.virtual_local_rank = is_virtual;
    const InEnvironment environment(told.to_env({}));
    const LaunchEnvironment read = LaunchEnvironment::from_env();
    EXPECT_FALSE(read.alone);
    EXPECT_EQ(read.rank, 3);
    EXPECT_EQ(read.world_size, 4);
    EXPECT_EQ(read.local_rank, 1);
    EXPECT_EQ(read.local_world_size, 2);
    EXPECT_EQ(read.group_rank, 1);
    EXPECT_EQ(read.group_world_size, 2);
    EXPECT_EQ(read.role, "trainer");
    EXPECT_EQ(read.run_id, "id7");
    EXPECT_EQ(read.restart_count, 1);
    EXPECT_EQ(read.max_restarts, 3);
    EXPECT_EQ(read.master_addr, "127.0.0.1");
    EXPECT_EQ(read.master_port, 1234);
    EXPECT_TRUE(read.agent_store);
    EXPECT_EQ(read.segment_fd, 9);
    EXPECT_EQ(read.local_addr, "10.1.2.3");
    EXPECT_EQ(read.error_file, "/scratch/1/error.json");
    EXPECT_EQ(read.timeline_parts, "/parts");
  }
}

/// A rank's variables are inherited by a job inside the job, whose launcher or program sets some of them
/// anew.
TEST(LaunchEnvironmentTest, ASegmentIsForTheRankThatItWasHandedTo) {
  LaunchEnvironment told = second_node().of_local_rank(1);
  told.segment_fd = 9;
  const InEnvironment environment(told.to_env({}));
  EXPECT_EQ(LaunchEnvironment::from_env().segment_fd, 9);
  for (const auto& [name, inner] :
       std::map<std::string, std::string>{{"RANK", "2"}, {"WORLD_SIZE", "5"}, {"MASTER_PORT", "1235"}}) {
    const std::string outer = env::get(name).value();
    env::set(name, inner);
    EXPECT_EQ(LaunchEnvironment::from_env().segment_fd, std::nullopt) << name;
    env::set(name, outer);
  }
}

TEST(LaunchEnvironmentTest, NothingOfAnOuterJobIsLeft) {
  LaunchEnvironment outer = second_node().of_local_rank(1);
  outer.segment_fd = 9;
  outer.local_addr = "10.1.2.3";
  outer.error_file = "/outer/error.json";
  outer.timeline_parts = "/outer";
  outer.terminal_columns = 80;
  outer.virtual_local_rank = true;
  LaunchEnvironment inner;
  inner.master_addr = "127.0.0.1";
  auto expected = as_map(inner.to_env({}));
  expected["CUDA_VISIBLE_DEVICES"] = "1";  // the outer rank's GPU is the inner ranks' too
  expected["OMP_NUM_THREADS"] = "8";       // and so are its threads
  EXPECT_EQ(as_map(inner.to_env(outer.to_env({}))), expected);
}

}  // namespace
}  // namespace lockstep::job
