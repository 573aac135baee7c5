#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/tracking/formats/crc32.h"
#include "lockstep/tracking/formats/event_file.h"
#include "lockstep/tracking/formats/json_lines.h"
#include "lockstep/tracking/formats/json_text.h"
#include "lockstep/tracking/histogram.h"
#include "lockstep/tracking/report_to.h"

namespace lockstep {
namespace {

TEST(TrackingFormats, TheChecksumOfTheStandard) {
  // crc32c of these is 0xE3069283.
  constexpr uint32_t kRotated = (0xE3069283u >> 15) | (0xE3069283u << 17);
  EXPECT_EQ(masked_crc32c("123456789"), kRotated + 0xA282EAD8u);
}

std::vector<std::string> events_of(std::string_view file) {
  std::vector<std::string> events;
  read_event_records(file, [&](std::string_view event) { events.emplace_back(event); });
  return events;
}

TEST(TrackingFormats, EventsAreReadUpToTheFirstThatIsDamaged) {
  const std::vector<std::string> events = {"one", "", std::string(1000, 'x')};
  std::string file;
  for (const auto& event : events) append_event_record(file, event);
  EXPECT_EQ(events_of(file), events);
  // 16 bytes around each; whatever is missing at the end, the events before are there.
  for (size_t size = 0; size < file.size(); ++size) {
    const size_t whole = size < 19 ? 0 : size < 35 ? 1 : 2;
    ASSERT_EQ(events_of(file.substr(0, size)).size(), whole) << size;
  }
  for (size_t byte = 0; byte < 19; ++byte) {
    std::string damaged = file;
    damaged[byte] ^= 1;
    EXPECT_TRUE(events_of(damaged).empty()) << byte;
  }
}

TEST(TrackingFormats, LinesThatAResumedRunKeeps) {
  std::string lines;
  for (const int64_t step : {1, 2, 2, 3})
    append_json_line(lines, step, {{"a", 0.5}, {"time", 1}}, NotFinite::null);
  lines.insert(0, "{\"config\": 1}\n");
  lines += "{\"finish\": 0}\n{\"step\": 1, \"a\": 0";
  const auto kept = [&](TrackedRun run) {
    std::vector<bool> asked;
    const std::string text =
        kept_json_lines(lines, KeptRecords(run), [&](std::string_view, bool last_is_kept) {
          asked.push_back(last_is_kept);
          return last_is_kept;
        });
    EXPECT_EQ(asked.size(), 2u);
    EXPECT_TRUE(lines.starts_with(text.substr(0, text.find("{\"finish"))));
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(kept({.id = "a", .resume_step = 3}), 6);
  EXPECT_EQ(kept({.id = "a", .resume_step = 2}), 4);
  EXPECT_EQ(kept({.id = "a", .resume_step = 2, .resume_step_records = 1}), 3);
  EXPECT_EQ(kept({.id = "a", .resume_step = 0}), 1);
}

TEST(TrackingFormats, NumbersAndTextsAsJson) {
  const auto json = [](const TrackedSetting& value, NotFinite not_finite = NotFinite::null) {
    std::string text;
    append_json(text, value, not_finite);
    return text;
  };
  EXPECT_EQ(json(0.1), "0.1");
  EXPECT_EQ(json(5e-5), "5e-05");
  EXPECT_EQ(json(3.0), "3");
  EXPECT_EQ(json(int64_t{1} << 62), "4611686018427387904");
  EXPECT_EQ(json(true), "true");
  EXPECT_EQ(json(std::nan("")), "null");
  EXPECT_EQ(json(-HUGE_VAL, NotFinite::literal), "-Infinity");
  EXPECT_EQ(json(std::string("plain")), "\"plain\"");
  EXPECT_EQ(json(std::string("a\"b\\c\nd")), "\"a\\\"b\\\\c\\nd\"");
  EXPECT_EQ(json(std::string("\xFF")), "\"\xEF\xBF\xBD\"");
}

TEST(TrackingFormats, HistogramsCountEachFiniteValueOnce) {
  const std::vector<double> values = {0, 0.15, 0.25, 0.35, 1, std::nan(""), HUGE_VAL};
  const auto histogram = make_histogram(values, 10);
  EXPECT_EQ(histogram.counts, (std::vector<int64_t>{1, 1, 1, 1, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(histogram.edges.size(), 11u);
  EXPECT_EQ(histogram.edges.back(), 1);
  EXPECT_EQ(histogram.number, 5);
  EXPECT_DOUBLE_EQ(histogram.sum_squares, 0.15 * 0.15 + 0.25 * 0.25 + 0.35 * 0.35 + 1);
  const std::vector<float> equal(3, 2.0F);
  const auto one = make_histogram(equal, 4);
  EXPECT_EQ(one.counts, (std::vector<int64_t>{0, 0, 3, 0}));
  EXPECT_EQ(one.edges.front(), 1.5);
  EXPECT_TRUE(make_histogram(std::vector<float>{}, 4).counts.empty());
  const std::vector<double> far = {-std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
  EXPECT_EQ(make_histogram(far, 2).counts, (std::vector<int64_t>{1, 1}));
  EXPECT_THROW(make_histogram(far, 0), ValueError);
}

TEST(ReportTo, NamesKinds) {
  using Kinds = std::vector<std::string>;
  EXPECT_EQ(parse_report_to("none"), Kinds());
  EXPECT_EQ(parse_report_to(""), Kinds());
  EXPECT_EQ(parse_report_to("all"), (Kinds{"tensorboard", "wandb", "jsonl", "csv"}));
  EXPECT_EQ(parse_report_to("csv,tensorboard,csv"), (Kinds{"tensorboard", "csv"}));
  for (const char* wrong : {"mlflow", "csv,", ",csv", "csv tensorboard", "all,csv", "CSV"}) {
    EXPECT_EQ(parse_report_to(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace lockstep
