#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "tools/timeline/draw.h"
#include "tools/timeline/summary.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

class TimelineTool : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "timeline-tool-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory = name;
  }
  void TearDown() override { fs::remove_all(directory); }
  fs::path file(const std::string& name, const std::string& content) {
    std::ofstream(directory / name) << content;
    return directory / name;
  }
  std::string error_of(const std::string& content) {
    try {
      read_trace({file("bad.json", content)});
    } catch (const FileError& error) {
      const std::string text = error.what();
      EXPECT_TRUE(text.starts_with((directory / "bad.json").string() + ": ")) << text;
      EXPECT_EQ(text.find('\n'), text.npos);
      return text.substr((directory / "bad.json").string().size() + 2);
    }
    return "no error";
  }
  fs::path directory;
};

std::string span(const char* category, double begin, double duration, int row = 0, int rank = 0,
                 const std::string& more = "") {
  return R"({"ph":"X","pid":)" + std::to_string(rank) + R"(,"tid":)" + std::to_string(row) + R"(,"cat":")" +
         category + R"(","name":")" + category + R"(","ts":)" + std::to_string(begin) + R"(,"dur":)" +
         std::to_string(duration) + more + "}";
}

TEST_F(TimelineTool, ComputeAndHiddenCommunicationAddUp) {
  // 10 to 30 forward, 30 to 90 backward that waits from 80; reduced from 50 to 90; a collective from 95 to
  // 100.
  const Trace trace =
      read_trace({file("t.json", "[" + span("forward", 10, 20) + "," + span("backward", 30, 60) + "," +
                                     span("reduce", 50, 20, 1000) + "," + span("reduce", 60, 30, 1001) + "," +
                                     span("wait", 80, 10) + "," + span("collective", 95, 5) + "]")});
  const RankSummary summary = summarize(trace.ranks.at(0));
  EXPECT_EQ(summary.steps, 1);
  EXPECT_DOUBLE_EQ(summary.span, 90);
  EXPECT_DOUBLE_EQ(summary.compute, 70);
  EXPECT_DOUBLE_EQ(summary.communication, 45);
  EXPECT_DOUBLE_EQ(summary.exposed, 15);
  EXPECT_DOUBLE_EQ(summary.overlapped(), 2.0 / 3);
  EXPECT_NE(summary_text(trace).find("66.7%"), std::string::npos);
}

TEST_F(TimelineTool, IntervalsAreUnitedAndIntersected) {
  EXPECT_EQ(united({{3, 4}, {0, 1}, {1, 2}, {0.5, 0.7}}), (Intervals{{0, 2}, {3, 4}}));
  EXPECT_EQ(intersection({{0, 2}, {3, 5}}, {{1, 4}}), (Intervals{{1, 2}, {3, 4}}));
  EXPECT_EQ(intersection({{0, 1}}, {{1, 2}}), Intervals());
}

TEST_F(TimelineTool, FilesOfOneJobAreJoinedByTheirClocks) {
  const auto with_base = [&](const char* name, const char* base, int rank) {
    return file(name, std::string(R"({"otherData":{"base_ns":")") + base + R"(","processes":[{"rank":)" +
                          std::to_string(rank) + R"(,"lost_events":0}]},"traceEvents":[)" +
                          span("forward", 0, 1, 0, rank) + "]}");
  };
  const fs::path a = with_base("a.json", "5000000", 0), b = with_base("b.json", "2000000", 1);
  const Trace trace = read_trace({a, b});
  EXPECT_DOUBLE_EQ(trace.ranks.at(0).spans[0].begin, 3000);
  EXPECT_DOUBLE_EQ(trace.ranks.at(1).spans[0].begin, 0);
  join_traces({a, b}, directory / "all.json");
  const Trace joined = read_trace({directory / "all.json"});
  EXPECT_DOUBLE_EQ(joined.ranks.at(0).spans[0].begin, 3000);
  EXPECT_DOUBLE_EQ(joined.ranks.at(1).spans[0].begin, 0);
  EXPECT_NE(read_file(directory / "all.json").find("\"base_ns\":\"2000000\""), std::string::npos);
  EXPECT_THROW(read_trace({a, file("foreign.json", "[" + span("forward", 0, 1) + "]")}), FileError);
}

TEST_F(TimelineTool, MalformedFilesAreNamedWithWhatIsWrong) {
  EXPECT_EQ(error_of(""), "is not JSON (at byte 1 of 0), so no timeline");
  EXPECT_EQ(error_of("{\"traceEvents\":["), "is not JSON (at byte 17 of 16), so no timeline");
  EXPECT_EQ(error_of("{}"),
            "is no timeline: expected an array of events, or an object with an array \"traceEvents\"");
  EXPECT_EQ(error_of("[]"), "has no spans: nothing to show");
  EXPECT_EQ(error_of("[5]"), "event 0 is not an object with a \"ph\"");
  EXPECT_EQ(error_of(R"([{"ph":"X","pid":0,"tid":0,"ts":"soon","dur":1}])"), "event 0 needs a number \"ts\"");
  EXPECT_EQ(error_of(R"([{"ph":"X","pid":0,"tid":0,"ts":1}])"), "event 0 needs a number \"dur\"");
  EXPECT_EQ(error_of(R"([{"ph":"X","ts":1,"dur":1}])"), "event 0 needs a number \"pid\"");
  EXPECT_EQ(error_of("[" + span("wait", 0, -1) + "]"), "event 0 has a negative \"dur\"");
  EXPECT_THROW(read_trace({directory / "none.json"}), FileError);
}

TEST_F(TimelineTool, ThePictureShowsWholeSteps) {
  std::string events;
  for (int step = 0; step < 5; ++step) {
    const double at = 1000.0 * step;
    for (int rank = 0; rank < 2; ++rank) {
      events +=
          (events.empty() ? "" : ",") + span("forward", at, 300, 0, rank) + "," +
          span("backward", at + 300, 600, 0, rank) + "," +
          span("reduce", at + 500, 300, 1000, rank, R"(,"args":{"bucket":)" + std::to_string(step) + "}");
    }
  }
  const Trace trace = read_trace({file("t.json", "[" + events + "]")});
  const Window window = last_steps(trace, 2);
  EXPECT_NEAR(window.from, 2000, 25);
  EXPECT_NEAR(window.to, 4000, 25);
  const std::string svg = draw_svg(trace, window);
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  for (const char* text : {">rank 0<", ">rank 1<", ">forward<", ">backward<", "100 % of it", "milliseconds",
                           "prefers-color-scheme: dark"}) {
    EXPECT_NE(svg.find(text), svg.npos) << text;
  }
  EXPECT_EQ(last_steps(trace, 100).from, last_steps(trace, 5).from);
  EXPECT_THROW(draw_svg(trace, {90000, 90001}), ValueError);
}

TEST_F(TimelineTool, NamesCannotBreakThePicture) {
  const Trace trace = read_trace(
      {file("t.json",
            R"([{"ph":"X","pid":0,"tid":0,"cat":"user","name":"<a & \"b\">\u0001","ts":0,"dur":9000}])")});
  const std::string svg = draw_svg(trace, last_steps(trace, 1));
  EXPECT_NE(svg.find("&lt;a &amp; &quot;b&quot;&gt; "), svg.npos);
  EXPECT_EQ(svg.find("<a &"), svg.npos);
}

}  // namespace
}  // namespace lockstep::tools
