#include "lockstep/checkpoint/run_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

RunRecord example() {
  RunRecord record;
  record.set("text", RecordKind::data, "caf\xC3\xA9 \xFF");
  record.set("number", RecordKind::flags, 7);
  record.set("share", RecordKind::flags, 0.1);
  record.set("none", RecordKind::flags, std::nan(""));
  record.set("flag", RecordKind::flags, true);
  record.set("labels", RecordKind::labels, std::vector<std::string>{"a", "b"});
  record.set_json("config", RecordKind::model, R"({ "b": 1,  "a": {"c": [1, 2]} })");
  record.add(ResumedAnyway{
      .step = 3, .kinds = {RecordKind::data}, .differences = {"x: 1 in the checkpoint, now 2"}});
  return record;
}

std::string differences_of(const RunRecord& saved, const RunRecord& now) {
  std::string all;
  for (const auto& each : compare(saved, now))
    all += std::string(name_of(each.kind)) + " " + describe(each) + "\n";
  return all;
}

TEST(RunRecord, IsReadAsItWasWritten) {
  EXPECT_EQ(RunRecord::from_json(example().to_json(), "file"), example());
  EXPECT_EQ(RunRecord::from_json(RunRecord().to_json(), "file"), RunRecord());
}

TEST(RunRecord, WhatIsNotOneIsRefused) {
  for (const char* text : {"", "[]", R"({"version": 1})", R"({"version": 2, "entries": {}})",
                           R"({"version": 1, "entries": {"a": {"kind": "color", "value": 1}}})",
                           R"({"version": 1, "entries": {"a": {"kind": "data"}}})",
                           R"({"version": 1, "entries": {}, "resumed_anyway": [{"step": "x"}]})"}) {
    EXPECT_THROW(RunRecord::from_json(text, "file"), FileError) << text;
  }
  RunRecord record;
  EXPECT_THROW(record.set_json("x", RecordKind::data, "{"), ValueError);
}

TEST(RunRecord, SpacesAndTheOrderOfKeysDoNotCount) {
  auto other = example();
  other.set_json("config", RecordKind::model, R"({"a":{"c":[1,2]},"b":1})");
  EXPECT_EQ(other, example());
  EXPECT_TRUE(compare(example(), other).empty());
}

TEST(RunRecord, DifferencesShowBothValuesAndTheKeyOfAnObject) {
  auto now = example();
  now.set("number", RecordKind::flags, 8);
  now.set_json("config", RecordKind::model, R"({"b": 1, "a": {"c": [1, 2], "d": 0}})");
  now.set("labels", RecordKind::labels, std::vector<std::string>{"b", "a"});
  now.remove("text");
  now.set("extra", RecordKind::sampling, "x");
  EXPECT_EQ(differences_of(example(), now),
            "model config.a.d: nothing in the checkpoint, now 0\n"
            "labels labels: [\"a\",\"b\"] in the checkpoint, now [\"b\",\"a\"]\n"
            "flags number: 7 in the checkpoint, now 8\n"
            "data text: \"caf\xC3\xA9 \xEF\xBF\xBD\" in the checkpoint, now nothing\n"
            "sampling extra: nothing in the checkpoint, now \"x\"\n");
}

TEST(RunRecord, ALongListIsShownByItsFirstDifference) {
  std::vector<std::string> names(1000, "name"), other = names;
  other[700] = "another";
  other.pop_back();
  RunRecord saved, now;
  saved.set("classes", RecordKind::labels, names);
  now.set("classes", RecordKind::labels, other);
  EXPECT_EQ(
      differences_of(saved, now),
      "labels classes: 1000 entries, entry 700 is \"name\" in the checkpoint, now 999 entries, entry 700 is "
      "\"another\"\n");
}

TEST(RunRecord, KindsAreNamed) {
  EXPECT_EQ(parse_record_kinds("data,labels,data"), (std::set{RecordKind::data, RecordKind::labels}));
  EXPECT_TRUE(parse_record_kinds("").empty());
  EXPECT_THROW(parse_record_kinds("world"), ValueError);
  EXPECT_THROW(parse_record_kinds("data, labels"), ValueError);
}

TEST(RunRecord, WhatIsNotAllowedIsRefusedWithEveryValue) {
  RunRecord saved, now;
  saved.set("rows", RecordKind::data, 5);
  now.set("rows", RecordKind::data, 6);
  saved.set("ranks", RecordKind::world, 2);
  now.set("ranks", RecordKind::world, 4);
  const auto found = check(compare(saved, now), {});
  EXPECT_EQ(found.refused.size(), 1U);
  EXPECT_EQ(found.said.size(), 1U);
  EXPECT_EQ(check(compare(saved, now), {RecordKind::data}).allowed.size(), 1U);
  try {
    refuse_changes(found.refused, "out/checkpoint-4", "--resume-anyway ");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_STREQ(
        error.what(),
        "out/checkpoint-4 is of another run: rows: 5 in the checkpoint, now 6; resume with what that run had, "
        "or allow the change with --resume-anyway data");
  }
}

TEST(RunRecord, ManyDifferencesAreAllShown) {
  RunRecord saved, now;
  for (int i = 0; i < 100; ++i) {
    saved.set("flag" + std::to_string(i), RecordKind::flags, i);
    now.set("flag" + std::to_string(i), RecordKind::flags, 1000 + i);
  }
  try {
    refuse_changes(compare(saved, now), "out/checkpoint-4", "--resume-anyway ");
    FAIL();
  } catch (const ValueError& error) {
    const std::string text = error.what();
    for (int i = 0; i < 100; ++i) {
      const auto difference = "flag" + std::to_string(i) + ": " + std::to_string(i) +
                              " in the checkpoint, now " + std::to_string(1000 + i);
      EXPECT_NE(text.find(difference), std::string::npos) << difference;
    }
    const std::string line = text.substr(0, text.find('\n'));
    EXPECT_NE(line.find("; and 88 more, below; resume with"), std::string::npos) << line;
    EXPECT_TRUE(line.ends_with("--resume-anyway flags")) << line;
  }
}

TEST(RunRecord, ALongTextIsShownWhereItDiffers) {
  const std::string same(1000, 'x');
  RunRecord saved, now;
  saved.set("text", RecordKind::flags, same + "old end");
  now.set("text", RecordKind::flags, same + "new end");
  saved.set("texts", RecordKind::flags, std::vector<std::string>{same + "old"});
  now.set("texts", RecordKind::flags, std::vector<std::string>{same + "new", "\xC3\xA9"});
  const std::string before(40, 'x');
  EXPECT_EQ(differences_of(saved, now),
            "flags text: ..." + before + "old end\" in the checkpoint, now ..." + before +
                "new end\"\nflags texts: 1 entries, entry 0 is ..." + before +
                "old\" in the checkpoint, now 2 entries, entry 0 is ..." + before + "new\"\n");
}

}  // namespace
}  // namespace lockstep::checkpoint
