#include "launcher/process/environment.h"

#include <gtest/gtest.h>

#include <map>

namespace lockstep::launcher {
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
JobEnvironment second_node() {
  JobEnvironment job;
  job.local_world_size = 2;
  job.group_rank = 1;
  job.group_world_size = 2;
  job.first_rank = 2;
  job.world_size = 4;
  job.role = "trainer";
  job.run_id = "id7";
  job.master_port = 1234;
  job.restart_count = 1;
  job.max_restarts = 3;
  job.threads = 8;
  job.directory = "/scratch";
  job.signals = "SIGTERM,SIGINT";
  return job;
}

TEST(EnvironmentTest, IsWhatTorchrunGives) {
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
  EXPECT_EQ(as_map(worker_environment({}, second_node(), 1)), expected);
}

TEST(EnvironmentTest, ReplacesStaleVariablesAndKeepsTheUsers) {
  JobEnvironment job = second_node();
  job.segment_fd = 9;
  const auto environment =
      as_map(worker_environment({"RANK=77", "RANKING=kept", "OMP_NUM_THREADS=3", "LOCKSTEP_SEGMENT_FD=5",
                                 "LOCKSTEP_TERMINAL_COLUMNS=90", "A=b=c"},
                                job, 0));
  EXPECT_EQ(environment.at("RANK"), "2");
  EXPECT_EQ(environment.at("RANKING"), "kept");
  EXPECT_EQ(environment.at("OMP_NUM_THREADS"), "3");
  EXPECT_EQ(environment.at("LOCKSTEP_SEGMENT_FD"), "9");
  EXPECT_FALSE(environment.contains("LOCKSTEP_TERMINAL_COLUMNS"));
  EXPECT_EQ(environment.at("A"), "b=c");
}

TEST(EnvironmentTest, VirtualLocalRanksSeeOneGpu) {
  JobEnvironment job = second_node();
  job.virtual_local_rank = true;
  EXPECT_EQ(as_map(worker_environment({}, job, 1)).at("LOCAL_RANK"), "0");
  EXPECT_EQ(as_map(worker_environment({}, job, 1)).at("CUDA_VISIBLE_DEVICES"), "1");
  EXPECT_EQ(as_map(worker_environment({"CUDA_VISIBLE_DEVICES=4,GPU-b"}, job, 1)).at("CUDA_VISIBLE_DEVICES"),
            "GPU-b");
}

TEST(EnvironmentTest, SeveralMachinesUseTheAgreedInterface) {
  JobEnvironment job = second_node();
  job.interface = "eth1";
  const auto environment = as_map(worker_environment({"NCCL_SOCKET_IFNAME=ib0"}, job, 0));
  EXPECT_EQ(environment.at("GLOO_SOCKET_IFNAME"), "eth1");
  EXPECT_EQ(environment.at("NCCL_SOCKET_IFNAME"), "ib0");
}

}  // namespace
}  // namespace lockstep::launcher
