#include <gtest/gtest.h>

#include "lockstep/zoo/tables/csv_scan.h"
#include "lockstep/zoo/tables/json_scan.h"

namespace lockstep::tables {
namespace {

TEST(CsvScan, FindsRecordsAndTheirLines) {
  const auto scan = scan_csv("a,b\n\n\"x\ny\",\"q\"\"q\"\r\n1,2,3\rlast", {}, 1, true);
  ASSERT_EQ(scan.records.size(), 4u);
  EXPECT_EQ(scan.records[0].line, 1);
  EXPECT_EQ(scan.records[1].line, 3);
  EXPECT_EQ(scan.records[1].fields, 2);
  EXPECT_EQ(scan.records[2].line, 5);
  EXPECT_EQ(scan.records[2].fields, 3);
  EXPECT_EQ(scan.records[3].line, 6);
  EXPECT_EQ(scan.records[3].fields, 1);
  EXPECT_FALSE(scan.open_quote);
}

// What a scan says of a text must not depend on where blocks end.
TEST(CsvScan, IsTheSameForEveryDivisionIntoBlocks) {
  const std::string text = "a,b\r\n\"x\r\n\"\"y\",1\r\n\r\n,\n\"\",\"\"\r\"z\"z,5\" d\nend,\"e\"\"";
  const auto whole = scan_csv(text + "\"", {}, 1, true);
  ASSERT_FALSE(whole.open_quote);
  const std::string all = text + "\"";
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    auto first = scan_csv(std::string_view(all).substr(0, cut), {}, 1, false);
    const auto rest = scan_csv(std::string_view(all).substr(first.consumed), {}, first.line, true);
    for (auto record : rest.records) {
      record.begin += first.consumed;
      record.end += first.consumed;
      first.records.push_back(record);
    }
    ASSERT_EQ(first.records.size(), whole.records.size()) << cut;
    for (size_t i = 0; i < whole.records.size(); ++i) {
      EXPECT_EQ(first.records[i].begin, whole.records[i].begin) << cut;
      EXPECT_EQ(first.records[i].end, whole.records[i].end) << cut;
      EXPECT_EQ(first.records[i].line, whole.records[i].line) << cut;
      EXPECT_EQ(first.records[i].fields, whole.records[i].fields) << cut;
      EXPECT_EQ(first.records[i].text_after_quote, whole.records[i].text_after_quote) << cut;
      EXPECT_EQ(first.records[i].wide_quote, whole.records[i].wide_quote) << cut;
    }
  }
}

TEST(CsvScan, TellsOfTextBehindAClosingQuoteAndOfWideQuotes) {
  const auto scan =
      scan_csv("\"a\"b,c\n\"a\" ,c\n\"a\"\"\",c\nx\"y\",\"\"\nz,\"p,q\n\nr\"\n\"p\nq\",z\n", {}, 1, true);
  ASSERT_EQ(scan.records.size(), 6u);
  const std::vector<bool> after = {true, true, false, false, false, false};
  const std::vector<bool> wide = {false, false, false, false, true, false};
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(scan.records[i].text_after_quote, after[i]) << i;
    EXPECT_EQ(scan.records[i].wide_quote, wide[i]) << i;
    EXPECT_EQ(scan.records[i].fields, 2) << i;
  }
}

TEST(CsvScan, TakesQuotesAsText) {
  const auto scan = scan_csv("a\t\"b\n\"c\td\"\n\"\te\"f", {.delimiter = '\t', .quotes = false}, 1, true);
  ASSERT_EQ(scan.records.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(scan.records[i].fields, 2);
    EXPECT_EQ(scan.records[i].line, static_cast<int64_t>(i) + 1);
    EXPECT_FALSE(scan.records[i].text_after_quote);
  }
}

TEST(CsvScan, FindsTheFieldOfAByte) {
  const std::string_view record = "ab,\"c,\"\"d,\",,\"e\"f,g\"h\n";
  const std::string_view fields = "0001111111112333334444";  // of each byte
  for (size_t place = 0; place < record.size(); ++place)
    EXPECT_EQ(find_field(record, {}, place), static_cast<size_t>(fields[place] - '0')) << place;
  EXPECT_EQ(find_field("\"a,b\"", {.quotes = false}, 3), 1u);
}

TEST(CsvScan, TellsOfAQuoteThatIsNeverClosed) {
  const auto scan = scan_csv("a\n\"b\nc", {}, 7, true);
  EXPECT_EQ(scan.records.size(), 1u);
  EXPECT_EQ(scan.open_quote, 8);
  EXPECT_FALSE(scan_csv("a\n\"b\nc", {}, 7, false).open_quote);
}

TEST(JsonScan, FindsTheValues) {
  JsonScanner scanner({"text", "label", "none"});
  EXPECT_EQ(
      scanner.scan(
          R"( { "label" : -1.5e3 , "x\u0041" : [1, {"label": 2}], "t\u0065xt":"a\"\u00e9\ud83d\ude00" } )"),
      "");
  EXPECT_EQ(scanner.values()[0].kind, JsonKind::STRING);
  EXPECT_EQ(scanner.values()[1].kind, JsonKind::FLOAT);
  EXPECT_EQ(scanner.values()[1].text, "-1.5e3");
  EXPECT_EQ(scanner.values()[2].kind, JsonKind::MISSING);
  EXPECT_EQ(scanner.names(), (std::vector<std::string>{"label", "xA", "text"}));
  EXPECT_EQ(scanner.unknown_key(), "xA");
  EXPECT_EQ(scanner.scan("{}"), "");
  EXPECT_TRUE(scanner.names().empty());
}

TEST(JsonScan, FindsKeysWithinObjects) {
  JsonScanner scanner({"t.en", "t.x.y", "t", "a.b", "none.n", "u"});
  EXPECT_EQ(
      scanner.scan(
          R"({"t": {"it": [1], "en": "red", "x": {"y": 2, "z": {}}}, "a.b": true, "none": null, "v": 1})"),
      "");
  EXPECT_EQ(scanner.values()[0].text, "\"red\"");
  EXPECT_EQ(scanner.values()[1].kind, JsonKind::INTEGER);
  EXPECT_EQ(scanner.values()[2].kind, JsonKind::OBJECT);
  EXPECT_EQ(scanner.values()[3].kind, JsonKind::BOOLEAN);
  EXPECT_EQ(scanner.values()[4].kind, JsonKind::NULL_VALUE);
  EXPECT_EQ(scanner.values()[5].kind, JsonKind::MISSING);
  EXPECT_EQ(scanner.unknown_key(), "v");
  EXPECT_EQ(scanner.scan(R"({"t": {}, "none": 5})"), "");
  EXPECT_EQ(scanner.values()[0].kind, JsonKind::MISSING);
  EXPECT_EQ(scanner.values()[4].kind, JsonKind::MISSING);
  EXPECT_EQ(scanner.scan(R"({"t": {"en": 1, "en": 2}})"), "the key 't.en' stands twice");
  EXPECT_EQ(scanner.scan(R"({"a.b": 1, "a": {"b": 2}})"), "the key 'a.b' stands twice");
  for (const char* line : {R"({"t": {"en")", R"({"t": {"en" 1}})", R"({"t": {"en": 1,}})",
                           R"({"t": {"en": 1)", R"({"t": {1: 1}})"})
    EXPECT_NE(scanner.scan(line), "") << line;
  std::string deep = "{\"t\":";
  JsonScanner wanted({"t" + [] {
    std::string path;
    for (int i = 0; i < 200; ++i) path += ".t";
    return path;
  }()});
  for (int i = 0; i < 200; ++i) deep += "{\"t\":";
  EXPECT_EQ(wanted.scan(deep), "nested more than 100 deep");
}

TEST(JsonScan, FindsTheElementsOfAList) {
  JsonScanner scanner({"a"});
  ASSERT_EQ(scanner.scan(R"({"a": [ "x,]" , 1.50,null,[2, 3],{"b": [4]} ] })"), "");
  const auto elements = scanner.find_elements(scanner.values()[0].text);
  std::vector<std::string_view> texts;
  for (const auto& element : elements) texts.push_back(element.text);
  EXPECT_EQ(texts, (std::vector<std::string_view>{"\"x,]\"", "1.50", "null", "[2, 3]", "{\"b\": [4]}"}));
  ASSERT_EQ(scanner.scan(R"({"a": [ ]})"), "");
  EXPECT_TRUE(scanner.find_elements(scanner.values()[0].text).empty());
}

TEST(JsonScan, UnescapesTexts) {
  std::string text = "<";
  append_unescaped(R"(\"\\\/\b\f\n\r\t\u0041\u00e9\u20AC\ud834\udd1e\u0000z)", text);
  EXPECT_EQ(text, std::string("<\"\\/\b\f\n\r\tA\xC3\xA9\xE2\x82\xAC\xF0\x9D\x84\x9E\0z", 21));
}

TEST(JsonScan, RefusesWhatIsNotOneObject) {
  JsonScanner scanner({"a"});
  for (const char* line : {"",
                           "[]",
                           "[{\"a\":1}]",
                           "1",
                           "{",
                           "{\"a\"}",
                           "{\"a\":}",
                           "{\"a\":1,}",
                           "{a:1}",
                           "{\"a\":01}",
                           "{\"a\":1.}",
                           "{\"a\":+1}",
                           "{\"a\":.5}",
                           "{\"a\":1e}",
                           "{\"a\":NaN}",
                           "{\"a\":tru}",
                           "{\"a\":'x'}",
                           "{\"a\":\"x}",
                           "{\"a\":\"\\x\"}",
                           "{\"a\":\"\\u12g4\"}",
                           "{\"a\":\"\\ud800\"}",
                           "{\"a\":\"\\udc00\"}",
                           "{\"a\":\"\\ud800\\u0041\"}",
                           "{\"a\":\"tab\there\"}",
                           "{\"a\":1} {\"a\":2}",
                           "{\"a\":1} x",
                           "{\"a\":[1,]}",
                           "{\"a\":[1}",
                           "{\"a\":{\"b\"}}",
                           "{\"a\":1,\"a\":2}",
                           "{\"a\":1,\"\\u0061\":2}",
                           "{\"a\":-}",
                           "{\"a\":1 \"b\":2}"}) {
    EXPECT_NE(scanner.scan(line), "") << line;
  }
  EXPECT_EQ(scanner.scan("{\"a\":1} {\"a\":2}"), "two objects on one line; expected one");
  EXPECT_EQ(scanner.scan("{\"b\":1,\"a\":1,\"b\":2}"), "the key 'b' stands twice");
}

TEST(JsonScan, RefusesDeepNestingAndManyEqualKeys) {
  JsonScanner scanner({"a"});
  const auto nested = [](size_t depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(scanner.scan(nested(99)), "");
  EXPECT_EQ(scanner.scan(nested(100)), "nested more than 100 deep");
  EXPECT_EQ(scanner.scan(nested(1000000)), "nested more than 100 deep");
  std::string many = "{";
  for (int i = 0; i < 50000; ++i) many += "\"k" + std::to_string(i) + "\":0,";
  EXPECT_EQ(scanner.scan(many + "\"z\":1}"), "");
  EXPECT_EQ(scanner.scan(many + "\"k77\":1}"), "the key 'k77' stands twice");
}

}  // namespace
}  // namespace lockstep::tables
