#include "lockstep/zoo/text/word_level.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "tests/text/temporary_directory.h"

namespace lockstep {
namespace {

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

const std::vector<std::string> kTexts = {"the cat, the mat", "the cat; The (((", "mat mat (("};

TEST(WordLevel, MostFrequentFirstThenInTheOrderOfBytes) {
  const auto tokenizer = text::WordLevelTokenizer::train(kTexts);
  EXPECT_EQ(tokenizer.vocab_size(), 4 + 3);
  EXPECT_EQ(tokenizer.encode("the mat cat The,(( [PAD][EOS]"),
            (std::vector<int64_t>{5, 4, 6, 0, 0, 1, 3}));  // ",((" is one word
  EXPECT_EQ(tokenizer.token_to_id("[SOS]"), 2);
  EXPECT_EQ(tokenizer.token_to_id("The"), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(6), "cat");
  EXPECT_EQ(tokenizer.id_to_token(7), std::nullopt);
  EXPECT_EQ(tokenizer.id_to_token(-1), std::nullopt);
}

TEST(WordLevel, DecodesWithoutSpecialTokensUnlessAsked) {
  const auto tokenizer = text::WordLevelTokenizer::train(kTexts);
  const std::vector<int64_t> ids = {2, 5, 6, 0, 3, 1, 1};
  EXPECT_EQ(tokenizer.decode(ids), "the cat");
  EXPECT_EQ(tokenizer.decode(ids, false), "[SOS] the cat [UNK] [EOS] [PAD] [PAD]");
}

TEST(WordLevel, SavedAndReadItIsTheSame) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "new" / "tokenizer_en.json";
  const auto tokenizer = text::WordLevelTokenizer::train(kTexts);
  tokenizer.save(path);
  const auto read = text::WordLevelTokenizer::from_file(path);
  EXPECT_EQ(read.encode("the mat cat The [EOS]"), tokenizer.encode("the mat cat The [EOS]"));
  read.save(directory.path() / "again.json");
  EXPECT_EQ(read_file(path), read_file(directory.path() / "again.json"));
  const auto marked = directory.write("marked.json", std::string(byte_order_mark) + read_file(path));
  text::WordLevelTokenizer::from_file(marked).save(directory.path() / "again.json");
  EXPECT_EQ(read_file(path), read_file(directory.path() / "again.json"));
}

TEST(WordLevel, RefusesOptionsThatDoNotFit) {
  const auto train = [](text::TrainWordLevelOptions options, std::vector<std::string> texts = kTexts) {
    return error_of([&] { text::WordLevelTokenizer::train(texts, options); });
  };
  EXPECT_EQ(train({.vocab_size = 3}), "vocab_size is 3, but there are 4 special tokens");
  EXPECT_EQ(train({.special_tokens = {"a", "b", "a"}, .unk_token = "a"}),
            "the special token a is named twice");
  EXPECT_EQ(train({.special_tokens = {"a", ""}, .unk_token = "a"}),
            "a special token of the tokenizer is empty");
  EXPECT_EQ(train({.special_tokens = {"a"}}),
            "the unk_token [UNK] is none of the special tokens; add it to them");
  EXPECT_EQ(train({}, {"good", "b\xff"}), "text 1 is not UTF-8: byte 1 breaks it; convert it first");
  EXPECT_EQ(error_of([] { text::WordLevelTokenizer::train(kTexts).encode("\x80"); }),
            "text is not UTF-8: byte 0 breaks it; convert it first");
}

TEST(WordLevel, RefusesFilesThatItDoesNotUnderstand) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "tokenizer.json";
  text::WordLevelTokenizer::train(kTexts).save(path);
  const std::string good = read_file(path);
  const auto change = [&](const std::string& from, const std::string& to) {
    std::string content = good;
    content.replace(content.find(from), from.size(), to);
    directory.write("tokenizer.json", content);
    const std::string error = error_of([&] { text::WordLevelTokenizer::from_file(path); });
    EXPECT_TRUE(error.starts_with(path.string() + ": ")) << error;
    return error.substr(std::min(error.size(), path.string().size() + 2));
  };
  EXPECT_EQ(change("\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}"),
            "normalizer is set, which lockstep's WordLevelTokenizer does not support");
  EXPECT_EQ(change("\"padding\": null", "\"padding\": {\"pad_id\": 1}"),
            "padding is set, which lockstep's WordLevelTokenizer does not support");
  EXPECT_EQ(change("Whitespace", "WhitespaceSplit"),
            "pre_tokenizer is not a Whitespace, which a WordLevel tokenizer has");
  EXPECT_EQ(change("WordLevel", "WordPiece"), "model is not a WordLevel, which a WordLevel tokenizer has");
  EXPECT_EQ(change("\"unk_token\": \"[UNK]\"", "\"unk_token\": \"<unk>\""),
            "model.unk_token is not in the vocabulary: <unk>");
  EXPECT_EQ(change("\"cat\": 6", "\"cat\": 5"), "model.vocab.the has the id of another token");
  EXPECT_EQ(change("\"cat\": 6", "\"cat\": -6"), "model.vocab.cat is not a token's id (0 to 16777215)");
  EXPECT_EQ(change("\"id\": 3,", "\"id\": 4,"), "added_tokens[3] gives [EOS] the id 4, but the vocabulary 3");
  EXPECT_EQ(change("\"[EOS]\": 3", "\"end\": 3"),
            "added_tokens[3] gives [EOS] the id 3 of the vocabulary's end");
  directory.write("tokenizer.json", "{");
  EXPECT_TRUE(error_of([&] {
                text::WordLevelTokenizer::from_file(path);
              }).starts_with(path.string() + " is not JSON (byte 2)"));
}

}  // namespace
}  // namespace lockstep
