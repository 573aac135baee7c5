// What `lockstep report` reads and how it makes a million values few.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "tools/report/history.h"
#include "tools/report/job_events.h"
#include "tools/report/page.h"
#include "tools/report/series.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

TEST(Condense, KeepsFewValuesAsTheyAre) {
  const std::vector<double> values = {3, 1, 2};
  const auto buckets = condense(values, 10);
  ASSERT_EQ(buckets.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(buckets[i].first, i);
    EXPECT_EQ(buckets[i].last, i);
    EXPECT_EQ(buckets[i].mean, values[i]);
  }
  EXPECT_TRUE(condense({}, 10).empty());
}

TEST(Condense, LosesNoPeakAndNoValue) {
  std::vector<double> values(100'003);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i) * 1e-3);
  values[77'777] = 50;
  values[3] = -50;
  const auto buckets = condense(values, 1500);
  ASSERT_EQ(buckets.size(), 1500U);
  double least = 0, greatest = 0, sum = 0;
  size_t next = 0;
  for (const auto& bucket : buckets) {
    EXPECT_EQ(bucket.first, next);
    next = bucket.last + 1;
    const auto count = static_cast<double>(next - bucket.first);
    EXPECT_TRUE(count == 66 || count == 67) << count;
    least = std::min(least, bucket.min);
    greatest = std::max(greatest, bucket.max);
    sum += bucket.mean * count;
  }
  EXPECT_EQ(next, values.size());
  EXPECT_EQ(least, -50);
  EXPECT_EQ(greatest, 50);
  double expected = 0;
  for (const double value : values) expected += value;
  EXPECT_NEAR(sum, expected, 1e-6);
}

TEST(Condense, LeavesOutWhatIsNotFinite) {
  const double nan = std::nan("");
  const auto buckets = condense(std::vector<double>{1, nan, nan, nan}, 2);
  ASSERT_EQ(buckets.size(), 2U);
  EXPECT_EQ(buckets[0].mean, 1);
  EXPECT_TRUE(std::isnan(buckets[1].mean) && std::isnan(buckets[1].min) && std::isnan(buckets[1].max));
}

TEST(StepRates, AreStepsOverTime) {
  History history;
  for (int64_t step = 10; step <= 50; step += 10) {
    history.begin_record(step, 1000 + static_cast<double>(step) / 4);  // four steps a second
    history.add("loss", 1);
  }
  const auto rates = step_rates(history, "loss", 2);
  ASSERT_EQ(rates.size(), 2U);
  for (const auto& rate : rates) EXPECT_DOUBLE_EQ(rate.per_second, 4);
  EXPECT_EQ(rates[1].step, 50);
  EXPECT_TRUE(step_rates(history, "accuracy", 2).empty());
  History without_times;
  without_times.begin_record(1, std::nan(""));
  without_times.add("loss", 1);
  without_times.begin_record(2, std::nan(""));
  without_times.add("loss", 1);
  EXPECT_TRUE(step_rates(without_times, "loss", 2).empty());
}

class ReportFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("lockstep_report_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  nlohmann::json data_of(const std::string& page) {
    const std::string begin = "id=\"data\">\n";
    const size_t from = page.find(begin) + begin.size();
    return parse_json(page.substr(from, page.find("\n</script>", from) - from));
  }
  fs::path folder_;
};

TEST_F(ReportFiles, JsonLinesWithDamagedLinesAndAnUnfinishedOne) {
  const auto read = read_json_lines(
      write("metrics.jsonl",
            "{\"step\": 1, \"time\": 10.5, \"loss\": 2, \"text\": \"no\"}\n"
            "{\"step\": 2, \"time\": 11.5, \"loss\": null}\n"
            "damaged\n"
            "{\"step\": 3, \"time\": 12.5, \"histogram\": {\"edges\": [1]}, \"accuracy\": 0.5}\n"
            "{\"step\": 4, \"time\": 13.5, \"lo"));
  EXPECT_EQ(read.damaged_lines, 1U);
  EXPECT_EQ(read.history.steps, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(read.history.times, (std::vector<double>{10.5, 11.5, 12.5}));
  ASSERT_EQ(read.history.series.size(), 2U);
  const auto& loss = read.history.series.at("loss");
  EXPECT_EQ(loss.records, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(loss.values[0], 2);
  EXPECT_TRUE(std::isnan(loss.values[1]));
}

TEST_F(ReportFiles, Csv) {
  const auto read = read_csv_history(write("metrics.csv",
                                           "step,time,loss,\"a \"\"b\"\", c\"\n"
                                           "1,5.5,0.25,\n"
                                           "2,6.5,nan,7\n"
                                           "x,6.5,1,7\n"));
  EXPECT_EQ(read.damaged_lines, 1U);
  EXPECT_EQ(read.history.times, (std::vector<double>{5.5, 6.5}));
  EXPECT_EQ(read.history.series.at("a \"b\", c").records, (std::vector<uint32_t>{1}));
  EXPECT_TRUE(std::isnan(read.history.series.at("loss").values[1]));
  EXPECT_THROW(read_csv_history(write("other.csv", "a,b\n1,2\n")), FileError);
}

TEST_F(ReportFiles, NothingOnThePageIsTakenForMarkup) {
  const std::string nasty = "</script><script>alert(1)</script>&<!--";
  write("metrics.jsonl", "{\"step\": 1, \"time\": 1, \"" + nasty + "\": 1}\n{\"step\": 2, \"time\": 2, \"" +
                             nasty + "\": 3}\n");
  write("training_args.json", "{\"" + nasty + "\": \"" + nasty + "\"}");
  const std::string page = report_page({read_run_directory(folder_)}, {.title = nasty});
  EXPECT_EQ(page.find("<script>alert"), page.npos);
  EXPECT_NE(page.find("<h1>&lt;/script>&lt;script>alert(1)"), page.npos);
  const auto data = data_of(page);
  EXPECT_EQ(data["runs"][0]["series"][0]["name"], nasty);
  EXPECT_EQ(data["runs"][0]["arguments"][nasty], nasty);
}

TEST_F(ReportFiles, APageThatWouldBeTooLargeHasFewerPoints) {
  std::string lines;
  for (int step = 1; step <= 3000; ++step) {
    lines += "{\"step\": " + std::to_string(step) + ", \"time\": " + std::to_string(step) +
             ", \"loss\": " + std::to_string(1.0 / step) + "}\n";
  }
  write("metrics.jsonl", lines);
  const auto run = read_run_directory(folder_);
  const std::string whole = report_page({run}, {.points = 3000});
  EXPECT_EQ(data_of(whole)["runs"][0]["series"][0]["mean"].size(), 3000U);
  const PageOptions options{.points = 3000, .most_bytes = whole.size() - 20'000};
  const std::string small = report_page({run}, options);
  EXPECT_LT(small.size(), options.most_bytes);
  const auto data = data_of(small)["runs"][0];
  EXPECT_LT(data["series"][0]["mean"].size(), 3000U);
  EXPECT_EQ(data["series"][0]["high"].size(), data["series"][0]["mean"].size());
  EXPECT_EQ(data["steps"], 3000);
  EXPECT_THROW(report_page({run}, {.most_bytes = 100}), ValueError);
}

TEST_F(ReportFiles, RunsOfOneNameAreToldApart) {
  for (const char* name : {"a", "b"}) {
    fs::create_directories(folder_ / name / "out");
    write(std::string(name) + "/out/log.jsonl",
          "{\"step\": 1, \"loss\": 1}\n{\"step\": 2, \"eval_loss\": 1}\n");
  }
  const auto first = read_run_directory(folder_ / "a/out"), second = read_run_directory(folder_ / "b/out/");
  EXPECT_EQ(first.name, "out");
  EXPECT_EQ(second.name, "out");
  const auto data = data_of(report_page({first, second}, {}));
  EXPECT_NE(data["runs"][0]["name"], data["runs"][1]["name"]);
  // The Trainer's log has the names that trackers give.
  EXPECT_TRUE(first.ranks.at(0).series.contains("train/loss") &&
              first.ranks.at(0).series.contains("eval/loss"));
}

std::string told(const char* line) { return describe_event(parse_json(line)).text; }

TEST(JobEventsTest, EachEventIsALine) {
  EXPECT_EQ(told(R"({"time":1,"event":"join","host":"a","address":"10.0.0.1","ranks":4,"machines":2})"),
            "a (10.0.0.1) with 4 ranks joined; 2 machines now");
  EXPECT_EQ(told(R"({"time":1,"event":"leave","host":"a","machines":1,"reason":"told to leave"})"),
            "a left (told to leave); 1 machine now");
  EXPECT_EQ(
      told(R"({"time":1,"event":"start","host":"a","first_rank":4,"ranks":4,"world_size":8,"restarts":1})"),
      "ranks 4 to 7 of 8 started on a (restart 1)");
  EXPECT_EQ(told(R"({"time":1,"event":"exit","host":"a","rank":1,"pid":7,"signal":"SIGKILL"})"),
            "rank 1 (pid 7) on a was killed by SIGKILL");
  EXPECT_EQ(told(R"({"time":1,"event":"exit","rank":0,"pid":8,"code":3})"),
            "rank 0 (pid 8) ended with exit code 3");
  EXPECT_EQ(
      told(
          R"({"time":1,"event":"replace","host":"a","rank":1,"pid":9,"step":118,"seconds":0.9,"reason":"rank 1 (pid 7) was killed by SIGKILL"})"),
      "rank 1 (pid 7) was killed by SIGKILL at step 118; replaced by pid 9 on a in 0.9 s, no step lost");
  EXPECT_EQ(told(R"({"time":1,"event":"restart","round":2,"restarts":1,"reason":"a was lost"})"),
            "all ranks start again (restart 1): a was lost");
  EXPECT_EQ(told(R"({"time":1,"event":"partition","round":2,"reason":"a does not reach b"})"),
            "a does not reach b");
  EXPECT_EQ(told(R"({"time":1,"event":"hang","host":"a","reason":"rank 1 is late"})"), "rank 1 is late on a");
  EXPECT_EQ(told(R"({"time":1,"event":"end","code":0,"restarts":2})"),
            "the job ended with exit code 0 after 2 restarts");
}

TEST(JobEventsTest, WhatItDoesNotKnowIsToldAsItStands) {
  EXPECT_EQ(told(R"({"time":1,"run_id":"r","event":"new","field":[1],"other":"x"})"), "field [1], other x");
  EXPECT_EQ(told(R"({"time":1,"event":"end","code":0,"later":true})"),
            "the job ended with exit code 0; later true");
  EXPECT_EQ(told(R"({"time":1,"event":"exit"})"), "a rank ended");
  EXPECT_EQ(told(R"({"time":1,"event":"exit","rank":"x","pid":1.5,"code":"y"})"),
            "rank x ended; code y, pid 1.5");
}

TEST(JobEventsTest, WhatIsTrouble) {
  const auto is_trouble = [](const char* line) { return describe_event(parse_json(line)).is_trouble; };
  for (const char* const line : {R"({"event":"exit","signal":"SIGKILL"})", R"({"event":"exit","code":1})",
                                 R"({"event":"end","code":75})", R"({"event":"partition"})",
                                 R"({"event":"hang"})", R"({"event":"replace"})", R"({"event":"restart"})"})
    EXPECT_TRUE(is_trouble(line)) << line;
  for (const char* const line : {R"({"event":"exit","code":0})", R"({"event":"end","code":0})",
                                 R"({"event":"join"})", R"({"event":"start"})", R"({"event":"new"})"})
    EXPECT_FALSE(is_trouble(line)) << line;
}

TEST(JobEventsTest, FilesOfAnyLengthAndCondition) {
  const fs::path path = fs::path(testing::TempDir()) / "events.jsonl";
  std::ofstream(path) << R"({"time":2,"event":"end","code":7})"
                      << "\n\nno json\n[1]\n{\"event\":\"end\"}\r\n"
                      << R"({"time":1,"event":"start"})"
                      << "\r\n"
                      << R"({"time":3,"eve)";
  const JobEvents read = read_job_events(path);
  ASSERT_EQ(read.events.size(), 2U);
  EXPECT_EQ(read.events[0].name, "start");
  EXPECT_EQ(read.end_code, 7);
  EXPECT_EQ(read.damaged_lines, 3U);
  std::ofstream many(path);
  for (int i = 0; i < 25; ++i) many << fmt::format("{{\"time\":{},\"event\":\"start\"}}\n", i);
  many.close();
  const JobEvents few = read_job_events(path, 10);
  ASSERT_EQ(few.events.size(), 10U);
  EXPECT_EQ(few.left_out, 15U);
  EXPECT_EQ(few.events[4].time, 4);
  EXPECT_EQ(few.events[5].time, 20);
  std::ofstream(path).close();
  EXPECT_TRUE(read_job_events(path).empty());
  fs::remove(path);
  EXPECT_THROW(read_job_events(path), FileError);
}

}  // namespace
}  // namespace lockstep::tools
