// What text_scores_parity_test.py does not ask of the peers.
#include "lockstep/zoo/text/metrics/text_scores.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/zoo/text/metrics/text_metric.h"

namespace lockstep {
namespace {

using Texts = std::vector<std::string>;

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(TextScores, OverNothing) {
  EXPECT_EQ(text::corpus_bleu({}, {}), 0);
  EXPECT_EQ(text::corpus_chrf({}, {}), 0);
  EXPECT_EQ(text::torchmetrics_bleu({}, {}), 0);
  EXPECT_EQ(text::char_error_rate({}, {}), 0);
  EXPECT_EQ(text::word_error_rate()->compute(), 0);
}

TEST(TextScores, AnEmptyReference) {
  EXPECT_EQ(text::char_error_rate(Texts{""}, Texts{""}), 0);
  EXPECT_EQ(text::char_error_rate(Texts{"abc"}, Texts{""}), 1);
  EXPECT_EQ(text::word_error_rate(Texts{"a b c"}, Texts{" "}), 1);
  EXPECT_EQ(text::word_error_rate(Texts{" "}, Texts{""}), 0);
  // It counts within a corpus: two edits for two words.
  EXPECT_EQ(text::word_error_rate(Texts{"a b", "a b"}, Texts{"", "a b"}), 1);
}

TEST(TextScores, ByHand) {
  EXPECT_DOUBLE_EQ(text::char_error_rate(Texts{"\u00e9t\u00e9s"}, Texts{"\u00e9te"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(text::word_error_rate(Texts{"the cat  sat"}, Texts{"a cat sat down"}), 0.5);
  EXPECT_NEAR(text::corpus_bleu(Texts{"The cat sat."}, Texts{"The cat sat."}), 100, 1e-12);
  // Three words: without four in a row torchmetrics' is 0, and the corpus' too; the sentence's is not.
  EXPECT_EQ(text::torchmetrics_bleu(Texts{"the cat sat"}, Texts{"the cat sat"}), 0);
  EXPECT_EQ(text::corpus_bleu(Texts{"the cat sat"}, Texts{"the cat sat"}), 0);
  EXPECT_NEAR(text::sentence_bleu("the cat sat", "the cat sat"), 100, 1e-12);
}

TEST(TextScores, RefuseWhatDoesNotFit) {
  EXPECT_EQ(refusal([] { text::corpus_bleu(Texts{"a"}, Texts{}); }),
            "bleu: there are 1 hypotheses and 0 references; each hypothesis needs its reference");
  EXPECT_EQ(refusal([] {
              text::word_error_rate()->update(Texts{"a"}, Texts{"a", "b"});
            }),
            "wer: there are 1 hypotheses and 2 references; each hypothesis needs its reference");
  EXPECT_EQ(refusal([] { text::sentence_chrf("a\xff", "b"); }),
            "chrf2: the hypothesis is not UTF-8: byte 1 breaks it; convert it first");
  EXPECT_EQ(refusal([] { text::char_error_rate()->update("a", "\x80"); }),
            "cer: the reference is not UTF-8: byte 0 breaks it; convert it first");
}

}  // namespace
}  // namespace lockstep
