// The tokenizer's parts, each against a plain reckoning of the same.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "lockstep/zoo/text/added_tokens.h"
#include "lockstep/zoo/text/char_walk.h"
#include "lockstep/zoo/text/double_array.h"
#include "lockstep/zoo/text/truncation.h"
#include "lockstep/zoo/text/utf8.h"
#include "lockstep/zoo/text/word_piece.h"

namespace lockstep::text {
namespace {

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8("plain text of many bytes, \u00e9\u20ac\U0001F600"), std::string_view::npos);
  EXPECT_EQ(find_invalid_utf8(
                "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"),
            std::string_view::npos);
  const std::string_view bad[] = {"\x80",
                                  "\xc0\x80",
                                  "\xc1\xbf",
                                  "\xe0\x9f\xbf",
                                  "\xed\xa0\x80",
                                  "\xf0\x8f\xbf\xbf",
                                  "\xf4\x90\x80\x80",
                                  "\xf5\x80\x80\x80",
                                  "\xff",
                                  "\xc3",
                                  "\xe2\x82",
                                  "\xf0\x9f\x98",
                                  "\xe2\x28\xa1"};
  for (const auto bytes : bad) {
    EXPECT_EQ(find_invalid_utf8(bytes), 0u);
    EXPECT_EQ(find_invalid_utf8("eight ascii bytes before" + std::string(bytes)), 24u);
  }
}

TEST(Utf8, WritesWhatItReads) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string bytes;
    append_code_point(bytes, code);
    ASSERT_EQ(find_invalid_utf8(bytes), std::string_view::npos) << std::hex << static_cast<uint32_t>(code);
    const char* at = bytes.data();
    ASSERT_EQ(next_code_point(at), code);
    ASSERT_EQ(at, bytes.data() + bytes.size());
  }
}

TEST(LongestFirst, LeavesWhatFits) {
  using Lengths = std::pair<size_t, size_t>;
  EXPECT_EQ(longest_first(3, 4, 7), Lengths(3, 4));
  EXPECT_EQ(longest_first(0, 9, 7), Lengths(0, 7));
  EXPECT_EQ(longest_first(9, 2, 7), Lengths(5, 2));
  EXPECT_EQ(longest_first(2, 9, 7), Lengths(2, 5));
  EXPECT_EQ(longest_first(4, 4, 7), Lengths(3, 4));
  EXPECT_EQ(longest_first(5, 4, 7), Lengths(4, 3));
  EXPECT_EQ(longest_first(300, 250, 7), Lengths(4, 3));
  EXPECT_EQ(longest_first(5, 6, 0), Lengths(0, 0));
  for (size_t first = 0; first < 12; ++first) {
    for (size_t second = 0; second < 12; ++second) {
      for (size_t room = 0; room < 26; ++room) {
        const auto [a, b] = longest_first(first, second, room);
        ASSERT_LE(a, first);
        ASSERT_LE(b, second);
        ASSERT_EQ(a + b, std::min(room, first + second));
      }
    }
  }
}

TEST(DoubleArray, FindsTheLongestPrefix) {
  std::mt19937 random(3);
  const auto word = [&](size_t longest) {
    std::string text(1 + random() % longest, 0);
    for (char& byte : text) byte = static_cast<char>(random() % 3 == 0 ? random() % 256 : 'a' + random() % 3);
    return text;
  };
  std::map<std::string, int32_t> keys;
  while (keys.size() < 5000) keys.emplace(word(7), static_cast<int32_t>(keys.size()));
  const DoubleArray trie({keys.begin(), keys.end()});
  for (int i = 0; i < 20000; ++i) {
    const std::string text = word(12);
    DoubleArray::Match expected;
    for (size_t n = 1; n <= text.size(); ++n) {
      if (const auto found = keys.find(text.substr(0, n)); found != keys.end()) expected = {n, found->second};
    }
    const auto match = trie.longest_prefix(text);
    ASSERT_EQ(match.length, expected.length);
    ASSERT_EQ(match.value, expected.value);
  }
}

TEST(DoubleArray, MayBeEmpty) {
  EXPECT_EQ(DoubleArray({}).longest_prefix(std::string_view("\0a", 2)).length, 0u);
}

TEST(WordPiece, TakesTheLongestPiecesOrNothing) {
  const WordPiece model(
      {{"un", 1}, {"unable", 2}, {"##able", 3}, {"##a", 4}, {"##ble", 5}, {"##", 6}, {"", 7}}, 0, "##");
  const auto ids = [&](std::string_view word) {
    std::vector<int64_t> result{9};
    model.append_ids(word, result);
    return result;
  };
  EXPECT_EQ(ids("unable"), (std::vector<int64_t>{9, 2}));
  EXPECT_EQ(ids("unablea"), (std::vector<int64_t>{9, 2, 4}));
  EXPECT_EQ(ids("unaa"), (std::vector<int64_t>{9, 1, 4, 4}));
  EXPECT_EQ(ids("unaable"), (std::vector<int64_t>{9, 1, 4, 3}));
  EXPECT_EQ(ids("unablex"), (std::vector<int64_t>{9, 0}));
  EXPECT_EQ(ids("able"), (std::vector<int64_t>{9, 0}));
  EXPECT_EQ(ids(""), (std::vector<int64_t>{9}));
}

// The normalized text, with | between words.
struct Words {
  std::string text;
  void word_bytes(const CharTable& table, const char* bytes, size_t n) {
    for (size_t i = 0; i < n; ++i) text += table.ascii_word(bytes[i]);
  }
  void word_char(char32_t code) { append_code_point(text, code); }
  void space(char32_t) { text += '|'; }
  void punctuation(char32_t code) {
    text += '|';
    append_code_point(text, code);
    text += '|';
  }
  bool full() const { return false; }
};

std::string words(std::string_view text, NormalizerOptions options) {
  Words sink;
  walk_characters(CharTable::get(options), text, sink);
  return sink.text;
}

TEST(CharTable, FollowsEachSwitch) {
  const std::string text = "\u00c9a\t\u4e2d\u0130.";
  EXPECT_EQ(words(text, {}), "ea||\u4e2d|i|.|");
  EXPECT_EQ(words(text, {.lowercase = false}), "Ea||\u4e2d|I|.|");
  EXPECT_EQ(words(text, {.strip_accents = false}), "\u00e9a||\u4e2d|i\u0307|.|");
  EXPECT_EQ(words(text, {.tokenize_chinese_chars = false}), "ea|\u4e2di|.|");
  EXPECT_EQ(words("a\u200bb\u00a0c", {}), "ab|c");
  EXPECT_EQ(words("a\u200bb\u00a0c", {.clean_text = false}), "a\u200bb|c");
}

TEST(CharTable, DecomposesAndSorts) {
  EXPECT_EQ(words("\ud55c\uae00", {}), "\u1112\u1161\u11ab\u1100\u1173\u11af");
  EXPECT_EQ(words("\uf900x", {}), "|\u8c48|x");
  // Marks that are kept are sorted by class, but not across a starter, even one that is dropped.
  EXPECT_EQ(words("a\U0001d16d\U0001d165b", {}), "a\U0001d165\U0001d16db");
  EXPECT_EQ(words("a\U0001d16d\u0300\U0001d165b", {}), "a\U0001d165\U0001d16db");
  EXPECT_EQ(words("a\U0001d16d\u0941\U0001d165b", {}), "a\U0001d16d\U0001d165b");
  EXPECT_EQ(words("a\U0001d16d \U0001d165", {}), "a\U0001d16d|\U0001d165");
}

TEST(AddedTokenMatcher, TakesTheLeftmostThenTheLongest) {
  AddedTokenMatcher matcher;
  matcher.add("<a>", {.content = "<a>", .id = 1});
  matcher.add("<a><b>", {.content = "<a><b>", .id = 2});
  matcher.add("<s>", {.content = "<s>", .id = 3, .lstrip = true, .rstrip = true});
  const auto parts = [&](std::string_view text) {
    std::string result;
    matcher.split(
        text, [&](std::string_view part) { result += "(" + std::string(part) + ")"; },
        [&](int32_t id, std::string_view) { result += std::to_string(id); });
    return result;
  };
  EXPECT_EQ(parts(""), "");
  EXPECT_EQ(parts("x<a"), "(x<a)");
  EXPECT_EQ(parts("<a>x<a><b><a>"), "1(x)21");
  EXPECT_EQ(parts("x \u3000<s>\n<s> y"), "(x)33(y)");
}

}  // namespace
}  // namespace lockstep::text
