#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/timeline/chrome_trace.h"
#include "lockstep/timeline/parts_folder.h"
#include "lockstep/timeline/recorder.h"

namespace lockstep::timeline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Timeline : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "timeline-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory = name;
    target = directory / "t.json";
    folder = parts_folder(target, "job");
    make_parts_folder(folder, target);
  }
  void TearDown() override {
    stop();
    fs::remove_all(directory);
  }
  /// Everything in the directory but the timeline.
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (entry.path() != target) names.push_back(entry.path().filename().string());
    }
    return names;
  }
  json merged() {
    EXPECT_TRUE(merge_parts(folder, target));
    EXPECT_EQ(left(), std::vector<std::string>());
    return json::parse(read_file(target));
  }
  static std::vector<json> spans(const json& root, const std::string& category) {
    std::vector<json> found;
    for (const json& event : root.at("traceEvents")) {
      if (event.value("cat", "") == category) found.push_back(event);
    }
    return found;
  }
  fs::path directory, target, folder;
};

TEST_F(Timeline, NothingIsRecordedBeforeItBeginsNorAfterItsEnd) {
  EXPECT_FALSE(is_on());
  { const Span span("before"); }
  start(folder, {.rank = 3, .world_size = 4, .host = "here"});
  EXPECT_TRUE(is_on());
  { const Span span("during"); }
  stop();
  EXPECT_FALSE(is_on());
  { const Span span("after"); }
  const json root = merged();
  ASSERT_EQ(spans(root, "user").size(), 1);
  const json event = spans(root, "user")[0];
  EXPECT_EQ(event["name"], "during");
  EXPECT_EQ(event["pid"], 3);
  EXPECT_EQ(event["ph"], "X");
  EXPECT_EQ(event["ts"], 0.0);
  EXPECT_GE(event["dur"], 0.0);
  EXPECT_EQ(root["otherData"]["world_size"], 4);
  EXPECT_EQ(root["otherData"]["processes"][0]["host"], "here");
  EXPECT_EQ(root["otherData"]["processes"][0]["finished"], true);
}

TEST_F(Timeline, APauseRecordsNothingAndIsCounted) {
  { const Pause nothing_to_pause; }
  EXPECT_EQ(events_recorded(), 0U);
  start(folder, {});
  { const Span span("before"); }
  {
    const Pause pause;
    EXPECT_FALSE(is_on());
    const Span span("during");
  }
  std::thread([] { const Span span("after, elsewhere"); }).join();
  EXPECT_EQ(events_recorded(), 2U);
  stop();
  EXPECT_EQ(spans(merged(), "user").size(), 2U);
}

TEST_F(Timeline, TimesBytesAndBucketsComeOutAsTheyWentIn) {
  start(folder, {});
  record(Kind::collective, "first", 1'000'000, 1'002'500, 64);
  record(Kind::reduce, "all_reduce", 1'004'000, 2'004'001, 1 << 20, 7);
  record(Kind::ready, "ready", 1'003'000, 1'003'000, 8, 7);
  stop();
  const json root = merged();
  const json first = spans(root, "collective")[0], reduce = spans(root, "reduce")[0],
             ready = spans(root, "ready")[0];
  EXPECT_EQ(first["ts"], 0.0);
  EXPECT_EQ(first["dur"], 2.5);
  EXPECT_EQ(first["args"], (json{{"bytes", 64}}));
  EXPECT_EQ(reduce["ts"], 4.0);
  EXPECT_EQ(reduce["dur"], 1000.001);
  EXPECT_EQ(reduce["name"], "all_reduce bucket 7");
  EXPECT_EQ(reduce["args"], (json{{"bucket", 7}, {"bytes", 1 << 20}}));
  EXPECT_EQ(ready["ph"], "i");
  EXPECT_NE(reduce["tid"], first["tid"]);
}

TEST_F(Timeline, AnotherMachinesClockIsSetRight) {
  start(folder, {.rank = 1, .host = "b", .clock_offset = -5'000, .clock_error = 40});
  record(Kind::user, "x", 10'000, 11'000);
  stop();
  start(folder, {.rank = 0, .host = "a"});
  record(Kind::user, "y", 5'500, 6'000);
  stop();
  const json root = merged();
  for (const json& event : spans(root, "user")) EXPECT_EQ(event["ts"], event["pid"] == 0 ? 0.5 : 0.0);
  EXPECT_EQ(root["otherData"]["processes"][1]["clock_error_us"], 0.04);
}

TEST_F(Timeline, LongAndStrangeNamesAreValidJson) {
  start(folder, {});
  const std::string strange = "a \"quoted\"\nname \x01\xff";
  { const Span span(strange); }
  { const Span span(std::string(40, 'n')); }
  stop();
  const auto found = spans(merged(), "user");
  EXPECT_EQ(found[0]["name"], "a \"quoted\"\nname \x01\xef\xbf\xbd");
  EXPECT_EQ(found[1]["name"], std::string(kMostNameBytes, 'n'));
}

TEST_F(Timeline, TheLastEventsOfALongRunAreKept) {
  start(folder, {});
  for (int64_t i = 1; i <= static_cast<int64_t>(kRingEvents) + 100; ++i)
    record(Kind::user, "e", i * 1000, i * 1000 + 1);
  stop();
  const json root = merged();
  const auto found = spans(root, "user");
  EXPECT_EQ(found.size(), kRingEvents - 1);
  EXPECT_EQ(root["otherData"]["processes"][0]["lost_events"], 101);
  EXPECT_EQ(found.back()["ts"], static_cast<double>(kRingEvents - 2));
}

TEST_F(Timeline, EveryThreadHasARowAndLeavesItToTheNext) {
  start(folder, {});
  { const Span span("main"); }
  for (int i = 0; i < 100; ++i) std::thread([] { const Span span("one after another"); }).join();
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kMostThreads + 5; ++i) {
    threads.emplace_back([&] {
      { const Span span("together"); }
      ++waiting;
      while (waiting < static_cast<int>(kMostThreads) + 5) std::this_thread::yield();
    });
  }
  for (auto& thread : threads) thread.join();
  stop();
  const json root = merged();
  std::map<std::string, std::set<int>> rows;
  for (const json& event : spans(root, "user")) rows[event["name"]].insert(event["tid"].get<int>());
  EXPECT_EQ(rows["one after another"].size(), 1);
  EXPECT_EQ(rows["together"].size(), kMostThreads - 1);
  EXPECT_EQ(root["otherData"]["processes"][0]["lost_events"], 6);
}

TEST_F(Timeline, WhatAKilledRankRecordedIsKept) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    start(folder, {.rank = 1, .world_size = 2, .host = ""});
    { const Span span("last words"); }
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  start(folder, {.rank = 0, .world_size = 2, .host = ""});
  { const Span span("alive"); }
  // While a rank writes nobody merges.
  EXPECT_FALSE(merge_parts(folder, target));
  EXPECT_FALSE(fs::exists(target));
  stop();
  const json root = merged();
  ASSERT_EQ(spans(root, "user").size(), 2);
  EXPECT_EQ(root["otherData"]["processes"][0]["finished"], true);
  EXPECT_EQ(root["otherData"]["processes"][1]["finished"], false);
}

TEST_F(Timeline, LeftoversAreFoundAndForeignFilesIgnored) {
  start(folder, {});
  { const Span span("x"); }
  stop();
  std::ofstream(folder / "rank-9-1-0") << "not a part";
  EXPECT_TRUE(merge_leftovers(target));
  EXPECT_EQ(left(), std::vector<std::string>());
  EXPECT_EQ(spans(json::parse(read_file(target)), "user").size(), 1);
  EXPECT_FALSE(merge_leftovers(target));
}

TEST_F(Timeline, AFolderThatIsNotThereIsNamed) {
  const fs::path nowhere = directory / "no" / "t.json";
  try {
    make_parts_folder(parts_folder(nowhere, "job"), nowhere);
    FAIL();
  } catch (const FileError& error) {
    EXPECT_EQ(std::string(error.what()), "LOCKSTEP_TIMELINE=" + nowhere.string() + ": cannot write there: " +
                                             (directory / "no").string() + ": No such file or directory");
  }
}

TEST_F(Timeline, ALauncherMergesWhatItsRanksLeave) {
  env::set(kVariable, target.string());
  fs::path parts;
  {
    const JobParts job("x/y");
    parts = job.folder();
    start(parts, {});
    { const Span span("x"); }
    stop();
    EXPECT_FALSE(fs::exists(target));
  }
  env::set(kVariable, std::nullopt);
  EXPECT_TRUE(fs::exists(target));
  EXPECT_FALSE(fs::exists(parts));
  EXPECT_TRUE(JobParts("z").folder().empty());
}

TEST(TimelineRows, OverlappingSpansGetRowsOfTheirOwn) {
  EXPECT_EQ(assign_rows({{0, 4}, {1, 2}, {2, 6}, {4, 5}, {5, 6}}), (std::vector<size_t>{0, 1, 1, 0, 0}));
  EXPECT_EQ(assign_rows({}), std::vector<size_t>());
}

}  // namespace
}  // namespace lockstep::timeline
