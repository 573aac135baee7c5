#include "lockstep/zoo/text/build_vocab.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/zoo/text/bert_tokenizer.h"
#include "tests/text/temporary_directory.h"

namespace lockstep::text {
namespace {

TEST(BuildVocab, SpecialTokensThenCharactersThenFrequentWords) {
  const auto tokens =
      text::build_vocab({"b ab ab. \xC3\x84"
                         "b",
                         "Ab cb"});
  EXPECT_EQ(tokens, (std::vector<std::string>{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "b", "##b", "a",
                                              "##a", ".", "##.", "c", "##c", "ab"}));
}

TEST(BuildVocab, SizeIsALimit) {
  EXPECT_EQ(text::build_vocab({"ab ab"}, {.vocab_size = 8}).size(), 8u);
  EXPECT_EQ(text::build_vocab({"Ab ab"}, {.do_lower_case = false}).size(), 5u + 2 * 3);
}

TEST(BuildVocab, TheTokenizerReadsItAndKnowsEveryWordOfTheTexts) {
  const std::vector<std::string_view> texts = {"a good film, a very good film",
                                               "na\xC3\xAFve caf\xC3\xA9s in T\xC5\x8Dky\xC5\x8D"};
  const TemporaryDirectory directory;
  const auto path = directory.path() / "vocab.txt";
  text::write_vocab(path, text::build_vocab(texts));
  const auto tokenizer = text::BertTokenizer::from_file(path);
  for (const auto& text : texts) {
    for (const int64_t id : tokenizer.encode(text).input_ids) EXPECT_NE(id, 1) << text;
  }
  EXPECT_EQ(tokenizer.encode("good film").input_ids.size(), 4u);
}

TEST(BuildVocab, RefusesTextThatIsNotUtf8) {
  try {
    text::build_vocab({"good", "caf\xE9"});
    FAIL() << "accepted";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "text 1 is not UTF-8: byte 3 breaks it; convert it first");
  }
  EXPECT_THROW(text::build_vocab({"\xF8\x88\x80\x80"}), ValueError);
}

}  // namespace
}  // namespace lockstep::text
