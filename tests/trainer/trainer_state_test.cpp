#include "lockstep/trainer/trainer_state.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/trainer/output/run_log.h"

namespace lockstep {
namespace {

TEST(TrainerState, JsonHasHuggingFacesKeysSorted) {
  TrainerState state;
  state.log_history.push_back({.values = {{"loss", 0.5}, {"learning_rate", 5e-05}}, .epoch = 1.0, .step = 3});
  const std::string text = to_json(state);
  EXPECT_NE(text.find("  \"log_history\": [\n    {\n      \"epoch\": 1.0,\n      \"learning_rate\": 5e-05,\n"
                      "      \"loss\": 0.5,\n      \"step\": 3\n    }\n  ],\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.rfind("{\n  \"best_global_step\": null,", 0), 0u);
  EXPECT_EQ(text.substr(text.size() - 3), "\n}\n");
  EXPECT_EQ(to_json_line(state.log_history[0]), R"({"epoch":1.0,"learning_rate":5e-05,"loss":0.5,"step":3})");
}

TEST(RunLog, ADiskThatIsFullForAWhileCostsNoLine) {
  std::string pattern = ::testing::TempDir() + "/lockstep_run_log_XXXXXX";
  const std::filesystem::path directory = ::mkdtemp(pattern.data());
  TrainingArguments arguments;
  arguments.output_dir = directory / "out";
  RunLog log(arguments.output_dir, true);
  log.begin(arguments);
  const auto path = arguments.output_dir / "log.jsonl";
  const auto entry = [](int64_t step) {
    return LogEntry{.values = {{"loss", 0.5}}, .epoch = 0, .step = step};
  };
  for (int64_t step = 1; step <= 40; ++step) log.append(entry(step));
  const std::string first = read_file(path);  // longer than the warning, whose file has the same limit
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = first.size() + 5, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  ::testing::internal::CaptureStderr();
  EXPECT_NO_THROW(log.append(entry(41)));
  EXPECT_NO_THROW(log.append(entry(42)));
  const std::string said = ::testing::internal::GetCapturedStderr();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(said.find("File too large"), std::string::npos) << said;
  EXPECT_EQ(said.find("File too large"), said.rfind("File too large")) << said;
  EXPECT_EQ(read_file(path), first);
  log.append(entry(43));
  std::string all = first;
  for (int64_t step = 41; step <= 43; ++step) all += to_json_line(entry(step)) + "\n";
  EXPECT_EQ(read_file(path), all);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace lockstep
