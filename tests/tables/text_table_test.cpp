#include "lockstep/zoo/tables/text_table.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/zoo/tables/text_encoding.h"

namespace lockstep {
namespace {

TEST(TextTable, NamesTheColumnsThatAreThere) {
  const tables::TextTable table("reviews.csv", {"text", "label"}, {{"a", "b"}, {"0", "1"}});
  EXPECT_EQ(table.size(), 2u);
  const auto labels = table.column("label");
  EXPECT_EQ(std::vector<std::string>(labels.begin(), labels.end()), (std::vector<std::string>{"0", "1"}));
  EXPECT_TRUE(table.has_column("text"));
  EXPECT_FALSE(table.has_column("Text"));
  try {
    table.column("labels");
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "reviews.csv: there is no column 'labels'; its columns are 'text', 'label'");
  }
}

TEST(TextTable, RefusesColumnsOfDifferentLength) {
  EXPECT_THROW(tables::TextTable("t.csv", {"a", "b"}, {{"1"}, {}}), ValueError);
  EXPECT_THROW(tables::TextTable("t.csv", {"a", "b"}, {{"1"}}), ValueError);
}

TEST(TextTable, SelectsRowsOfSelections) {
  const tables::TextTable table("t.csv", {"a"}, {{"0", "1", "2", "3"}});
  const auto some = table.select({3, 1, 1}).select({2, 0});
  EXPECT_EQ(some.size(), 2u);
  EXPECT_EQ(some.column("a")[0], "1");
  EXPECT_EQ(some.column("a")[1], "3");
  EXPECT_EQ(some.place(1), "t.csv: record 4");
  EXPECT_EQ(table.select({}).size(), 0u);
  EXPECT_THROW(some.select({2}), ValueError);
  EXPECT_THROW(some.select({-1}), ValueError);
}

TEST(TextTable, FingerprintTellsValuesColumnsAndSelectionsApart) {
  const auto print = [](std::vector<std::string> names,
                        const std::vector<std::vector<std::string>>& columns) {
    return tables::TextTable("t.csv", std::move(names), columns).fingerprint();
  };
  const auto one = print({"a", "b"}, {{"x", "yz", ""}, {"1", "2", "3"}});
  EXPECT_EQ(one.rows, 3);
  EXPECT_EQ(one.columns, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(one.hash.size(), 16u);
  EXPECT_EQ(one, print({"a", "b"}, {{"x", "yz", ""}, {"1", "2", "3"}}));
  EXPECT_NE(one, print({"a", "c"}, {{"x", "yz", ""}, {"1", "2", "3"}}));
  EXPECT_NE(one, print({"a", "b"}, {{"xy", "z", ""}, {"1", "2", "3"}}));  // bytes in the same order
  EXPECT_NE(one, print({"a", "b"}, {{"x", "yz", ""}, {"1", "3", "2"}}));
  EXPECT_NE(one, print({"a", "b"}, {{"1", "2", "3"}, {"x", "yz", ""}}));
  const tables::TextTable table("t.csv", {"a"}, {{"0", "1", "2"}});
  EXPECT_EQ(table.select({1, 2}).fingerprint(),
            table.select({2, 1, 0}).select({1, 0}).select({0, 1}).select({0, 1}).fingerprint());
  EXPECT_NE(table.select({1, 2}).fingerprint(), table.select({2, 1}).fingerprint());
  EXPECT_EQ(table.select({2}).fingerprint().rows, 1);
}

// Texts come one by one, or as Arrow has them, in blocks of any size and from any offset.
TEST(DataFingerprint, DoesNotDependOnBlocks) {
  const std::string bytes = "--abcdefghij";
  const std::vector<int32_t> ends = {2, 3, 3, 7, 12};
  DataFingerprinter by_value({"t"});
  for (const char* text : {"a", "", "bcde", "fghij"}) by_value.add(0, text);
  by_value.add_rows(4);
  for (size_t cut = 0; cut < ends.size(); ++cut) {
    DataFingerprinter by_block({"t"});
    const std::span all(ends);
    const auto middle = static_cast<size_t>(ends[cut]);
    by_block.add_texts(0, std::string_view(bytes).substr(2, middle - 2), all.first(cut + 1));
    by_block.add_rows(cut);
    by_block.add_texts(0, std::string_view(bytes).substr(middle), all.subspan(cut));
    by_block.add_rows(4 - cut);
    EXPECT_EQ(by_block.finish(), by_value.finish()) << cut;
  }
}

TEST(TextEncoding, FindsTheFirstByteThatIsNotUtf8) {
  EXPECT_EQ(tables::valid_utf8_prefix(""), 0u);
  EXPECT_EQ(tables::valid_utf8_prefix("caf\xC3\xA9 \xF0\x9D\x84\x9E"), 10u);
  EXPECT_EQ(tables::valid_utf8_prefix("caf\xE9"), 3u);
  EXPECT_EQ(tables::valid_utf8_prefix("ab\xC3"), 2u);               // cut off
  EXPECT_EQ(tables::valid_utf8_prefix("a\xC0\x80"), 1u);            // overlong
  EXPECT_EQ(tables::valid_utf8_prefix("\xED\xA0\x80"), 0u);         // surrogate
  EXPECT_EQ(tables::valid_utf8_prefix("abc\xF4\x90\x80\x80"), 3u);  // above U+10FFFF
}

TEST(TextEncoding, DecodesWindows1252WhereItIsNotUtf8) {
  EXPECT_EQ(tables::to_utf8("caf\xC3\xA9"), "caf\xC3\xA9");
  EXPECT_EQ(tables::to_utf8("caf\xE9"), "caf\xC3\xA9");
  EXPECT_EQ(tables::to_utf8("\x93quoted\x94 \x97 \x80"),
            "\xE2\x80\x9Cquoted\xE2\x80\x9D \xE2\x80\x94 \xE2\x82\xAC");
  EXPECT_THROW(tables::to_utf8("\x81"), ValueError);
}

}  // namespace
}  // namespace lockstep
