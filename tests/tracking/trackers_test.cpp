#include "lockstep/tracking/trackers.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/shell.h"
#include "lockstep/tracking/csv_tracker.h"
#include "lockstep/tracking/report_to.h"
#include "lockstep/tracking/run_id.h"
#include "lockstep/tracking/wandb_tracker.h"

namespace lockstep {
namespace {

class TrackersTest : public ::testing::Test {
 protected:
  TrackersTest() {
    std::string pattern = ::testing::TempDir() + "/lockstep_trackers_XXXXXX";
    directory = ::mkdtemp(pattern.data());
    use_client("echo '{\"ready\": \"1\"}' >&3; cat >/dev/null");
  }
  ~TrackersTest() override {
    env::set(env::kPythonExec, python_before);
    std::filesystem::remove_all(directory);
    std::filesystem::remove(client());
  }
  std::string client() const { return directory.string() + "_client"; }
  /// In place of Python and wandb's client (tracking_peers_test.py has the real ones).
  void use_client(const std::string& script) {
    std::filesystem::remove(client());
    std::ofstream(client()) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(client(), std::filesystem::perms::owner_all);
    env::set(env::kPythonExec, client());
  }
  std::filesystem::path directory;
  std::optional<std::string> python_before = env::get(env::kPythonExec);
};

struct Refusing : Tracker {
  explicit Refusing(std::string text) : text(std::move(text)) {}
  std::string name() const override { return "refusing"; }
  void start(const TrackedRun&) override {}
  void log(int64_t, const TrackedValues&) override { throw Error(text); }
  std::string text;
};

struct Counting : Tracker {
  std::string name() const override { return "counting"; }
  void start(const TrackedRun& run) override { id = run.id; }
  void log(int64_t, const TrackedValues& values) override { logged += values.size(); }
  void finish(int code) override { exit_code = code; }
  std::string id;
  size_t logged = 0;
  int exit_code = -1;
};

TEST_F(TrackersTest, OneThatFailsIsLeftOutWithAWarning) {
  auto counting = std::make_shared<Counting>();
  Trackers trackers({std::make_shared<Refusing>("no connection"), counting});
  trackers.start({.id = "some"});
  ::testing::internal::CaptureStderr();
  trackers.log(1, {{"a", 1}, {"b", 2}});
  trackers.log(2, {{"a", 1}});
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "[lockstep] warning: tracking by refusing ends: no connection. The training goes on. Other trackers that "
      "fail for this reason end without a warning\n");
  trackers.finish(3);
  EXPECT_EQ(counting->id, "some");
  EXPECT_EQ(counting->logged, 3u);
  EXPECT_EQ(counting->exit_code, 3);
}

size_t lines_of(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

// A limit on the size of files refuses a write in the middle, as a full disk does.
TEST_F(TrackersTest, AFullDiskEndsTrackingWithOneWarning) {
  const TrackedRun run{.id = "full"};
  std::vector<std::shared_ptr<Tracker>> list;
  for (const char* kind : {"tensorboard", "wandb", "jsonl", "csv"}) {
    list.push_back(make_tracker(kind, run, {.directory = directory}));
  }
  Trackers trackers(std::move(list));
  trackers.start(run);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 20000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  ::testing::internal::CaptureStderr();
  for (int64_t step = 1; step <= 2000; ++step) trackers.log(step, {{"loss", 0.5}});
  trackers.finish();
  const std::string said = ::testing::internal::GetCapturedStderr();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(trackers.empty());
  EXPECT_EQ(lines_of(said), 1u) << said;
  EXPECT_NE(said.find("cannot write " + directory.string()), std::string::npos) << said;
  EXPECT_NE(said.find("File too large"), std::string::npos) << said;
  // What is there ends with a whole record.
  const std::string lines = read_file(directory / "metrics.jsonl");
  EXPECT_GT(lines_of(lines), 100u);
  EXPECT_TRUE(lines.ends_with("}\n"));
  EXPECT_TRUE(read_file(directory / "metrics.csv").ends_with(",0.5\n"));
}

TEST_F(TrackersTest, ADirectoryThatCannotBeMadeIsAWarning) {
  std::ofstream(directory / "file") << "in the way";
  const TrackedRun run{.id = "id"};
  Trackers trackers({make_tracker("csv", run, {.directory = directory / "file"})});
  ::testing::internal::CaptureStderr();
  trackers.start(run);
  trackers.log(1, {{"loss", 1}});
  EXPECT_EQ(lines_of(::testing::internal::GetCapturedStderr()), 1u);
}

TEST_F(TrackersTest, RunIds) {
  EXPECT_NE(make_run_id(), make_run_id());
  EXPECT_EQ(make_run_id().size(), 8u);
  EXPECT_EQ(read_run_id(directory / "run_id"), "");
  write_run_id(directory / "run_id", "my-run_1");
  EXPECT_EQ(read_run_id(directory / "run_id"), "my-run_1");
  for (const std::string wrong : {"", "a/b", "..", "a b", "ä"}) {
    EXPECT_THROW(check_run_id(wrong), ValueError) << wrong;
    EXPECT_THROW(Trackers({}).start({.id = wrong}), ValueError) << wrong;
  }
}

TEST_F(TrackersTest, NamesOfColumnsMayHoldAnything) {
  const auto path = directory / "odd.csv";
  const auto row_without_time = [&](size_t line) {
    std::istringstream file(read_file(path));
    std::string row;
    for (size_t l = 0; l <= line; ++l) std::getline(file, row);
    const size_t time = row.find(',');
    return row.substr(0, time) + row.substr(row.find(',', time + 1));
  };
  {
    CsvTracker csv(path);
    csv.start({.id = "a"});
    csv.log(1, {{"a,b", 1}, {"say \"hi\"", 2}});
    csv.log(2, {{"plain", 3}});
  }
  EXPECT_TRUE(read_file(path).starts_with("step,time,\"a,b\",\"say \"\"hi\"\"\",plain\n"));
  EXPECT_EQ(row_without_time(1), "1,1,2,");
  EXPECT_EQ(row_without_time(2), "2,,,3");
  CsvTracker csv(path);
  csv.start({.id = "a", .resume_step = 1});
  csv.log(2, {{"plain", 4}, {"a,b", 5}});
  EXPECT_TRUE(read_file(path).starts_with("step,time,\"a,b\",\"say \"\"hi\"\"\",plain\n"));
  EXPECT_EQ(row_without_time(1), "1,1,2,");
  EXPECT_EQ(row_without_time(2), "2,5,,4");
}

TEST_F(TrackersTest, WandbMetricsAreChecked) {
  WandbTracker wandb({.directory = directory});
  wandb.start({.id = "a"});
  wandb.define_metric("train/*", {.summary = "max"});
  EXPECT_THROW(wandb.define_metric("loss", {.summary = "best"}), ValueError);
  EXPECT_EQ(wandb.path(), directory / "wandb" / "a.jsonl");
}

TEST_F(TrackersTest, WhatIsNotInstalledIsAnError) {
  const TrackedRun run{.id = "a"};
  const auto start = [&](bool skip_missing) {
    auto counting = std::make_shared<Counting>();
    Trackers trackers(
        {make_tracker("wandb", run, {.directory = directory, .skip_missing = skip_missing}), counting});
    trackers.start(run);
    trackers.log(1, {{"loss", 1}});
    EXPECT_EQ(counting->logged, 1u);
  };
  const auto expect_error = [&](const std::string& cause) {
    try {
      start(false);
      FAIL() << cause;
    } catch (const NotInstalledError& error) {
      EXPECT_NE(std::string(error.what()).find(cause), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("-m pip install wandb"), std::string::npos) << error.what();
    }
    ::testing::internal::CaptureStderr();
    start(true);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("tracking by wandb ends: "), std::string::npos) << said;
    EXPECT_NE(said.find(cause), std::string::npos) << said;
  };
  use_client("echo '{\"missing\": \"snake has no wandb\"}' >&3; exit 1");
  expect_error("snake has no wandb");
  use_client("exit 7");
  expect_error("ended with exit code 7");
  env::set(env::kPythonExec, (directory / "nothing").string());
  expect_error("nothing cannot be started: No such file or directory");
}

TEST_F(TrackersTest, AClientThatFailsIsAWarningAndLosesNothing) {
  const std::string ready = "echo '{\"ready\": \"1\"}' >&3; ";
  const std::vector<std::pair<std::string, std::string>> clients = {
      {"exec sleep 1000", "has not imported wandb within 1 s"},
      {ready + "exit 3", "its client ended with exit code 3"},
      {ready + "kill -9 $$", "its client was ended by signal 9"},
      {ready + "echo '{\"problem\": \"no network\"}' >&3; exit 1", "of this run: no network"},
      {ready + "exec 3>&-; exec sleep 1000", "its client was ended by signal 9"},
      {ready + "cat >/dev/null; exit 4", "its client ended with exit code 4"},
      {ready + "trap '' TERM INT; exec sleep 1000", "has not sent all within 1 s after the end"},
  };
  for (const auto& [client, problem] : clients) {
    SCOPED_TRACE(client);
    use_client("echo $$ > " + (directory / "pid").string() + "; " + client);
    ::testing::internal::CaptureStderr();
    WandbTracker wandb({.directory = directory, .start_timeout_seconds = 0.6, .finish_timeout_seconds = 0.6});
    wandb.start({.id = "a"});
    for (int64_t step = 1; step <= 5; ++step) wandb.log(step, {{"loss", 1}});
    wandb.finish(0);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(lines_of(said), 1u) << said;
    EXPECT_NE(said.find(problem), std::string::npos) << said;
    const std::string folder = (directory / "wandb").string();
    EXPECT_NE(said.find(" " + folder + "/wandb_follower.py " + folder + "/a.jsonl\n"), std::string::npos)
        << said;
    const std::string lines = read_file(directory / "wandb" / "a.jsonl");
    EXPECT_EQ(lines_of(lines), 7u) << lines;
    EXPECT_TRUE(lines.ends_with("{\"finish\": 0}\n")) << lines;
    EXPECT_EQ(::kill(std::stoi(read_file(directory / "pid")), 0), -1);  // no process is left
  }
}

TEST_F(TrackersTest, WhatToTypeLaterIsQuoted) {
  use_client("echo '{\"ready\": \"1\"}' >&3; exit 3");
  const auto runs = directory / "my runs' folder";
  std::filesystem::create_directories(runs);
  const auto python = runs / "a python";
  std::filesystem::rename(client(), python);
  env::set(env::kPythonExec, python.string());
  ::testing::internal::CaptureStderr();
  WandbTracker wandb({.directory = runs, .finish_timeout_seconds = 5});
  wandb.start({.id = "a"});
  wandb.finish(0);
  const std::string said = ::testing::internal::GetCapturedStderr();
  const auto folder = runs / "wandb";
  EXPECT_NE(said.find(" " + shell_quoted(python.string()) + " " +
                      shell_quoted((folder / "wandb_follower.py").string()) + " " +
                      shell_quoted((folder / "a.jsonl").string()) + "\n"),
            std::string::npos)
      << said;
}

// A young file and one that is large already.
TEST_F(TrackersTest, NewColumnsKeepAllRows) {
  const auto path = directory / "grows.csv";
  // Left by processes that were killed while they wrote new columns, or began.
  std::ofstream(directory / ".grows.csv.new") << "step";
  std::ofstream(directory / ".grows.csv.abc123") << "step";
  CsvTracker csv(path);
  csv.start({.id = "a"});
  int64_t step = 0;
  const auto log_rows = [&](int64_t rows, const std::string& name) {
    for (int64_t i = 0; i < rows; ++i) {
      ++step;
      csv.log(step, {{name, 0.123456789 + static_cast<double>(step)}});
    }
  };
  log_rows(1, "first");
  log_rows(100, "second");
  log_rows(3000, "third");
  log_rows(2, "fourth");
  csv.finish(0);
  std::istringstream file(read_file(path));
  std::string row;
  std::getline(file, row);
  EXPECT_EQ(row, "step,time,first,second,third,fourth");
  int64_t rows = 0;
  while (std::getline(file, row)) {
    EXPECT_TRUE(row.starts_with(std::to_string(++rows) + ","));
    EXPECT_EQ(std::count(row.begin(), row.end(), ','), 5) << row;
  }
  EXPECT_EQ(rows, step);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}),
            1);  // nothing is left beside it
}

}  // namespace
}  // namespace lockstep
