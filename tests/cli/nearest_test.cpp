#include "lockstep/cli/nearest.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

const std::vector<std::string> kFlags = {"num-train-epochs", "per-device-train-batch-size", "output-dir",
                                         "bf16"};

TEST(NearestWord, ForgivesAFewEdits) {
  EXPECT_EQ(nearest_word("--outputdir", kFlags), "output-dir");
  EXPECT_EQ(nearest_word("--output_dri=x", kFlags), "output-dir");
  EXPECT_EQ(nearest_word("--bf-16", kFlags), "bf16");
}

TEST(NearestWord, KnowsABeginningAndAPart) {
  EXPECT_EQ(nearest_word("--num-train", kFlags), "num-train-epochs");
  EXPECT_EQ(nearest_word("--epochs", kFlags), "num-train-epochs");
  EXPECT_EQ(nearest_word("--batch-size", kFlags), "per-device-train-batch-size");
}

TEST(NearestWord, DoesNotGuess) {
  for (const char* word : {"", "-", "--", "--x", "--weight", "--atch-size-of"}) {
    EXPECT_EQ(nearest_word(word, kFlags), "") << word;
  }
}

TEST(OneOf, ReadsAsASentence) {
  EXPECT_EQ(one_of({"a"}), "a");
  EXPECT_EQ(one_of({"a", "b"}), "a or b");
  EXPECT_EQ(one_of({"a", "b", "c"}), "a, b or c");
}

}  // namespace
}  // namespace lockstep
