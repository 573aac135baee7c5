#include "lockstep/zoo/tasks/sentence_pairs.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/data/token_batches.h"

namespace lockstep {
namespace {

TEST(BatchesByTokens, HoldEachSampleOnceAndLittlePadding) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 1000; ++i) lengths.push_back(1 + (i * 37) % 60);
  lengths.push_back(500);  // longer than a batch: alone
  const auto batches = batches_by_tokens(lengths, 256);
  std::vector<int> seen(lengths.size());
  int64_t cells = 0, tokens = 0;
  for (const auto& batch : batches) {
    int64_t longest = 0;
    for (const int64_t sample : batch) {
      ++seen[static_cast<size_t>(sample)];
      longest = std::max(longest, lengths[static_cast<size_t>(sample)]);
      tokens += lengths[static_cast<size_t>(sample)];
    }
    const auto size = static_cast<int64_t>(batch.size()) * longest;
    EXPECT_TRUE(size <= 256 || batch.size() == 1) << size;
    cells += size;
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
  EXPECT_LT(static_cast<double>(cells), 1.05 * static_cast<double>(tokens));
  EXPECT_THROW(batches_by_tokens({1}, 0), ValueError);
  EXPECT_TRUE(batches_by_tokens({}, 8).empty());
}

class SentenceFiles : public testing::Test {
 protected:
  SentenceFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-sentences-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~SentenceFiles() override { std::filesystem::remove_all(directory_); }
  tasks::SentencePairs read(const std::string& source, const std::string& target) {
    write_file_atomically(directory_ / "s.txt", source);
    write_file_atomically(directory_ / "t.txt", target);
    return tasks::read_sentence_pairs(directory_ / "s.txt", directory_ / "t.txt");
  }
  std::string error_of(const std::string& source) {
    try {
      read(source, "uno\n");
    } catch (const FileError& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  std::filesystem::path directory_;
};

TEST_F(SentenceFiles, AByteOrderMarkIsNoWord) {
  const std::string mark = "\xEF\xBB\xBF";
  const auto pairs = read(mark + "one\r\n" + mark + "two\n", mark + "uno\ndue");
  ASSERT_EQ(pairs.pairs.size(), 2U);
  EXPECT_EQ(pairs.pairs[0].source, "one");
  EXPECT_EQ(pairs.pairs[0].target, "uno");
  EXPECT_EQ(pairs.pairs[1].source, mark + "two");  // only the file's start has such a mark
  EXPECT_EQ(read(mark + mark + "one\n", "uno\n").pairs[0].source, mark + "one");
  EXPECT_EQ(read("\xEF\xBB\xBEone\n", "uno\n").pairs[0].source, "\xEF\xBB\xBEone");  // another character
  EXPECT_NE(error_of(mark).find("s.txt is empty"), std::string::npos) << error_of(mark);
  EXPECT_NE(error_of(mark + "\none\n").find("s.txt:1: the line is empty"), std::string::npos);
  EXPECT_NE(error_of(mark.substr(0, 2)).find("s.txt:1: byte 1 is not UTF-8"), std::string::npos);
  EXPECT_NE(error_of(mark + "one \xE9\n").find("s.txt:1: byte 5 is not UTF-8"), std::string::npos);
}

TEST(Detokenize, WritesAsPeopleDo) {
  EXPECT_EQ(tasks::detokenize("l ' albero , che ( forse ) cresce ."), "l'albero, che (forse) cresce.");
  EXPECT_EQ(tasks::detokenize("don ' t say \" no \" : and / or"), "don't say \"no\": and/or");
  EXPECT_EQ(tasks::detokenize("SUM () is File - Open"), "SUM() is File - Open");
  EXPECT_EQ(tasks::detokenize(""), "");
}

TEST(TranslationDataset, MakesTheOriginalsBatches) {
  const std::vector<std::string> texts = {"a b c", "a b", "b c d"};
  const auto tokenizer = text::WordLevelTokenizer::train(texts, {.min_frequency = 1});
  const auto special = tasks::SpecialTokens::of(tokenizer, "t.json");
  tasks::SentencePairs pairs{.source_file = "s",
                             .target_file = "t",
                             .pairs = {{.source = "a b c", .target = "b", .line = 1},
                                       {.source = "a [EOS] zzz", .target = "c d a", .line = 2}}};
  const auto encoded = std::make_shared<tasks::EncodedPairs>(
      tasks::encode_pairs(pairs, tokenizer, tokenizer, special, {.seq_len = 9}));
  const auto id = [&](const char* token) { return *tokenizer.token_to_id(token); };
  const Dataset dataset = tasks::translation_dataset(encoded, special, 0, 10);
  ASSERT_EQ(dataset.size, 2);
  EXPECT_EQ(dataset.lengths, (std::vector<int64_t>{5, 5}));
  const Batch batch = dataset.collate({0, 1});
  const auto row = [](const at::Tensor& ids, int64_t i) {
    const at::Tensor one = ids[i].contiguous();
    return std::vector<int64_t>(one.const_data_ptr<int64_t>(), one.const_data_ptr<int64_t>() + one.size(0));
  };
  EXPECT_EQ(row(batch["source_ids"], 1),
            (std::vector<int64_t>{2, id("a"), 0, 0, 3}));  // no end of sentence inside
  EXPECT_EQ(row(batch["target_ids"], 0), (std::vector<int64_t>{2, id("b"), 1, 1}));
  EXPECT_EQ(row(batch["labels"], 0), (std::vector<int64_t>{id("b"), 3, 1, 1}));
  EXPECT_EQ(row(batch["sample"].unsqueeze(0), 0), (std::vector<int64_t>{10, 11}));
  const Dataset by_tokens = tasks::translation_dataset(encoded, special, 10);
  ASSERT_EQ(by_tokens.size, 1);
  EXPECT_EQ(by_tokens.collate({0})["source_ids"].size(0), 2);
}

}  // namespace
}  // namespace lockstep
