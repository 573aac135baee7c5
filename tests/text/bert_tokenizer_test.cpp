// BertTokenizer's interface: what it returns, saves and refuses. The ids of real text are compared with the
// peer's in tokenizer_parity_test.py.
#include "lockstep/zoo/text/bert_tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "tests/text/temporary_directory.h"

namespace lockstep::text {
namespace {

using Ids = std::vector<int64_t>;

constexpr const char* kVocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\n##s\n,\nWorld\n";

constexpr const char* kJson = R"({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 5, "content": "<x>", "special": false, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false}],
  "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                 "lowercase": false},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
  "decoder": null,
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 6, "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "World": 4}}
})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("nothing to replace: " + from);
  return text.replace(at, from.size(), to);
}

template <class Error>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

class BertTokenizerTest : public testing::Test {
 protected:
  text::BertTokenizer tokenizer(text::BertTokenizerOptions options = {}) {
    return text::BertTokenizer::from_file(directory.write("vocab.txt", kVocab), options);
  }
  std::string json_error(const std::string& from, const std::string& to) {
    const auto path = directory.write("tokenizer.json", replaced(kJson, from, to));
    const auto message = message_of<FileError>([&] { text::BertTokenizer::from_file(path); });
    EXPECT_EQ(message.find(path.string()), 0u) << message;
    return message;
  }
  std::string vocab_error(const std::string& content) {
    const auto path = directory.write("vocab.txt", content);
    const auto message = message_of<FileError>([&] { text::BertTokenizer::from_file(path); });
    EXPECT_EQ(message.find(path.string()), 0u) << message;
    return message;
  }
  TemporaryDirectory directory;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(BertTokenizerTest, EncodesTextsAndPairs) {
  const auto t = tokenizer();
  EXPECT_EQ(t.vocab_size(), 10);
  EXPECT_EQ(t.pad_token_id(), 0);
  EXPECT_EQ(t.encode("").input_ids, (Ids{2, 3}));
  EXPECT_EQ(t.encode("Hello, Worlds [MASK]!").input_ids, (Ids{2, 5, 8, 6, 7, 4, 1, 3}));
  const auto pair = t.encode("hello", "world world");
  EXPECT_EQ(pair.input_ids, (Ids{2, 5, 3, 6, 6, 3}));
  EXPECT_EQ(pair.token_type_ids, (Ids{0, 0, 0, 1, 1, 1}));
  const auto empty_pair = t.encode("hello", "");
  EXPECT_EQ(empty_pair.input_ids, (Ids{2, 5, 3, 3}));
  EXPECT_EQ(empty_pair.token_type_ids, (Ids{0, 0, 0, 1}));
  EXPECT_EQ(tokenizer({.do_lower_case = false}).encode("Hello World world").input_ids, (Ids{2, 1, 9, 6, 3}));
}

TEST_F(BertTokenizerTest, Truncates) {
  const auto t = tokenizer();
  EXPECT_EQ(t.encode("hello world", std::nullopt, 3).input_ids, (Ids{2, 5, 3}));
  EXPECT_EQ(t.encode("hello worlds", std::nullopt, 4).input_ids, (Ids{2, 5, 6, 3}));
  EXPECT_EQ(t.encode("hello worlds", std::nullopt, 2).input_ids, (Ids{2, 3}));
  EXPECT_EQ(t.encode("hello world hello", "world", 6).input_ids, (Ids{2, 5, 6, 3, 6, 3}));
  EXPECT_EQ(t.encode("hello world", "world hello", 3).input_ids, (Ids{2, 3, 3}));
  EXPECT_HAS(message_of<ValueError>([&] { t.encode("hello", std::nullopt, 1); }), "max_length is 1");
  EXPECT_HAS(message_of<ValueError>([&] { t.encode("hello", "world", 2); }),
             "special tokens of a pair alone are 3");
}

TEST_F(BertTokenizerTest, RefusesTextThatIsNotUtf8) {
  const auto t = tokenizer();
  EXPECT_HAS(message_of<ValueError>([&] { t.encode("caf\xe9 x"); }), "text is not UTF-8: byte 3");
  EXPECT_HAS(message_of<ValueError>([&] { t.encode("x", "\xff"); }), "text_pair is not UTF-8: byte 0");
}

TEST_F(BertTokenizerTest, MayBeSharedByThreads) {
  const auto t = tokenizer();
  const auto expected = t.encode("Hello worlds, [MASK] h\u00e9llo", "World", 8).input_ids;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        wrong += t.encode("Hello worlds, [MASK] h\u00e9llo", "World", 8).input_ids != expected;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(BertTokenizerTest, ReadsVocabLinesAsThePeerDoes) {
  const auto path =
      directory.write("vocab.txt", "[PAD]\n[UNK]\r\n[CLS]  \n[SEP]\u3000\nhello\n\nhello\nlast");
  const auto t = text::BertTokenizer::from_file(path);
  EXPECT_EQ(t.encode("hello last").input_ids, (Ids{2, 6, 7, 3}));
  EXPECT_EQ(t.vocab_size(), 8);
  // Without [MASK] in the vocabulary these are brackets and a word.
  EXPECT_EQ(t.encode("[MASK]").input_ids, (Ids{2, 1, 1, 1, 3}));
}

TEST_F(BertTokenizerTest, AByteOrderMarkIsNoPartOfAToken) {
  const std::string mark = "\xEF\xBB\xBF";
  for (const char* name : {"vocab.txt", "tokenizer.json"}) {
    const std::string content = name == std::string("vocab.txt") ? kVocab : kJson;
    const auto plain = text::BertTokenizer::from_file(directory.write(name, content));
    const auto marked = text::BertTokenizer::from_file(directory.write(name, mark + content));
    EXPECT_EQ(marked.vocab_size(), plain.vocab_size()) << name;
    EXPECT_EQ(marked.pad_token_id(), 0) << name;
    EXPECT_EQ(marked.encode("hello World[MASK]").input_ids, plain.encode("hello World[MASK]").input_ids)
        << name;
  }
  EXPECT_HAS(vocab_error(mark), "is empty");
  EXPECT_HAS(vocab_error(mark + mark + kVocab), "has no [PAD]");  // a second one is a character
}

TEST_F(BertTokenizerTest, RefusesBadVocab) {
  EXPECT_HAS(message_of<FileError>([&] { text::BertTokenizer::from_file(directory.path() / "none.txt"); }),
             "none.txt");
  EXPECT_HAS(message_of<FileError>([&] { text::BertTokenizer::from_file(directory.path()); }), "directory");
  EXPECT_HAS(vocab_error(""), "is empty");
  EXPECT_HAS(vocab_error("[PAD]\n[UNK]\ncaf\xe9\n"), "vocab.txt:3: the line is not UTF-8");
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}) {
    EXPECT_HAS(vocab_error(replaced(kVocab, token, "other")), std::string("has no ") + token);
  }
}

TEST_F(BertTokenizerTest, TokenizerJsonHasItsOwnSettings) {
  const auto path = directory.write("tokenizer.json", kJson);
  const auto t = text::BertTokenizer::from_file(path, {.do_lower_case = true});
  EXPECT_EQ(t.encode("World world a<x>").input_ids, (Ids{2, 4, 1, 1, 5, 3}));
  EXPECT_EQ(t.encode("Worldxx").input_ids, (Ids{2, 1, 3}));
  EXPECT_EQ(t.vocab_size(), 6);
}

/// Nothing is left of an accent after normalizing, and no text has nothing.
TEST_F(BertTokenizerTest, AnAddedTokenOfNothingIsInNoText) {
  std::string json = replaced(kJson, "\"content\": \"<x>\"", "\"content\": \"\u0301\"");
  json = replaced(json, "\"clean_text\": true", "\"clean_text\": false");
  json = replaced(json, "\"strip_accents\": null", "\"strip_accents\": true");
  json = replaced(json, "\"normalized\": false", "\"normalized\": true");
  const auto t = text::BertTokenizer::from_file(directory.write("tokenizer.json", json));
  EXPECT_EQ(t.encode(std::string_view("World\0World", 11)).input_ids.size(), 3u);
}

TEST_F(BertTokenizerTest, RefusesBadTokenizerJson) {
  EXPECT_HAS(json_error("{", "["), "is not JSON");
  EXPECT_HAS(json_error("\"World\": 4", "\"World\": " + std::string(1000, '[')), "is not JSON");
  EXPECT_HAS(json_error("World", "W\xff"), "is not UTF-8");
  EXPECT_HAS(json_error("\"WordPiece\"", "\"BPE\""), "model is not a WordPiece");
  EXPECT_HAS(json_error("BertNormalizer", "Lowercase"), "normalizer is not a BertNormalizer");
  EXPECT_HAS(json_error("BertPreTokenizer", "Whitespace"), "pre_tokenizer is not a BertPreTokenizer");
  EXPECT_HAS(json_error("BertProcessing", "RobertaProcessing"), "post_processor is not a TemplateProcessing");
  EXPECT_HAS(json_error("\"sep\": [\"[SEP]\", 3]", "\"sep\": []"), "post_processor.sep has no element 0");
  EXPECT_HAS(json_error("\"clean_text\": true", "\"clean_text\": 1"), "normalizer.clean_text is neither");
  EXPECT_HAS(json_error("\"model\"", "\"models\""), "has no \"model\"");
  EXPECT_HAS(json_error("\"World\": 4", "\"World\": -4"), "model.vocab.World is not a token's id");
  EXPECT_HAS(json_error("\"World\": 4", "\"World\": 2.5"), "model.vocab.World is not a token's id");
  EXPECT_HAS(json_error("\"World\": 4", "\"World\": 99999999999"), "model.vocab.World is not a token's id");
  EXPECT_HAS(json_error("\"World\": 4", "\"World\": 3"), "has the id of another token");
  EXPECT_HAS(json_error("\"[UNK]\": 1", "\"[OOV]\": 1"), "has no [UNK]");
  EXPECT_HAS(json_error("\"id\": 5", "\"id\": 4"), "the id 4 of the vocabulary's World");
  EXPECT_HAS(json_error("\"content\": \"<x>\"", "\"content\": \"World\""), "but the vocabulary 4");
  EXPECT_HAS(json_error("\"single_word\": false", "\"single_word\": true"), "single_word is true");
  EXPECT_HAS(json_error("\"max_input_chars_per_word\": 6", "\"max_input_chars_per_word\": \"6\""),
             "max_input_chars_per_word is not a number");
}

TEST_F(BertTokenizerTest, DirectoryNeedsAVocabulary) {
  EXPECT_HAS(message_of<FileError>([&] { text::BertTokenizer::from_directory(directory.path()); }),
             "neither tokenizer.json nor vocab.txt");
  directory.write("vocab.txt", kVocab);
  directory.write("tokenizer_config.json", "{\"do_lower_case\": \"no\"}");
  EXPECT_HAS(message_of<FileError>([&] { text::BertTokenizer::from_directory(directory.path()); }),
             "tokenizer_config.json: do_lower_case is neither true nor false");
}

TEST_F(BertTokenizerTest, TokenizerConfigWinsInADirectory) {
  directory.write("tokenizer.json", kJson);
  EXPECT_EQ(text::BertTokenizer::from_directory(directory.path()).encode("World").input_ids, (Ids{2, 4, 3}));
  directory.write("tokenizer_config.json", "{\"do_lower_case\": true}");
  EXPECT_EQ(text::BertTokenizer::from_directory(directory.path()).encode("World").input_ids, (Ids{2, 1, 3}));
  directory.write("tokenizer_config.json",
                  "{\"do_lower_case\": true, \"tokenizer_class\": \"PreTrainedTokenizerFast\"}");
  EXPECT_EQ(text::BertTokenizer::from_directory(directory.path()).encode("World").input_ids, (Ids{2, 4, 3}));
}

TEST_F(BertTokenizerTest, SavesWhatItLoaded) {
  const auto config = R"({"do_lower_case": false, "model_max_length": 77,
    "added_tokens_decoder": {"10": {"content": "[NEW]", "special": true}}})";
  directory.write("vocab.txt", kVocab);
  directory.write("tokenizer_config.json", config);
  const auto loaded = text::BertTokenizer::from_directory(directory.path());
  EXPECT_EQ(loaded.encode("World[NEW]").input_ids, (Ids{2, 9, 10, 3}));
  const auto saved = directory.path() / "a" / "b";
  loaded.save(saved);
  EXPECT_EQ(read_file(saved / "vocab.txt"), kVocab);
  EXPECT_HAS(read_file(saved / "tokenizer_config.json"), "\"model_max_length\": 77");
  const auto again = text::BertTokenizer::from_directory(saved);
  EXPECT_EQ(again.encode("World[NEW]").input_ids, (Ids{2, 9, 10, 3}));
  EXPECT_EQ(again.vocab_size(), 11);
  EXPECT_EQ(text::BertTokenizer::from_file(saved / "tokenizer.json").encode("World[NEW]").input_ids,
            (Ids{2, 9, 10, 3}));
  EXPECT_HAS(message_of<FileError>([&] { loaded.save(directory.path() / "vocab.txt"); }), "vocab.txt");
}

}  // namespace
}  // namespace lockstep::text
