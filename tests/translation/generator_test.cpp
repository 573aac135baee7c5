#include "lockstep/zoo/models/transformer/generator.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::models {
namespace {

using Ids = std::vector<std::vector<int64_t>>;

// The models are too small for several threads to help.
[[maybe_unused]] const int one_thread = (at::set_num_threads(1), 1);

Transformer small_model(uint64_t seed = 1) {
  at::manual_seed(seed);
  Transformer model(TransformerConfig{.source_vocab_size = 40,
                                      .target_vocab_size = 30,
                                      .seq_len = 48,
                                      .d_model = 32,
                                      .num_layers = 2,
                                      .num_heads = 4,
                                      .d_ff = 48,
                                      .dropout = .3});
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() > 1) parameter.mul_(2);  // sharper: sentences differ, and end
  }
  return model;
}

Ids some_sources(int count) {
  Ids sources;
  for (int i = 0; i < count; ++i) {
    const at::Tensor ids = at::randint(4, 40, {1 + (i * 7) % 13}, at::kLong);
    sources.emplace_back(1, 2);
    sources.back().insert(sources.back().end(), ids.const_data_ptr<int64_t>(),
                          ids.const_data_ptr<int64_t>() + ids.size(0));
    sources.back().push_back(3);
  }
  return sources;
}

Ids ids_of(const GenerateResult& result) {
  Ids ids;
  for (const auto& sentence : result.sentences) ids.push_back(sentence.ids);
  return ids;
}

TEST(DecoderState, CachedLogitsAreThoseWithoutACache) {
  auto model = small_model();
  model->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor sources = pad_ids(some_sources(5), 1);
  const DecoderWeights weights(*model);
  for (const int64_t beams : {1, 3}) {
    const auto cached = cached_decoder(*model, weights, model->encode(sources), beams);
    const auto uncached = uncached_decoder(*model, sources, beams);
    int64_t sentences = 5;
    for (int step = 0; step < 40; ++step) {  // past the first room of the cache
      const at::Tensor ids = at::randint(4, 30, {sentences * beams}, at::kLong);
      const at::Tensor difference = (cached->step(ids) - uncached->step(ids)).abs().max();
      ASSERT_LT(difference.item<float>(), 1e-5) << "step " << step << ", " << beams << " beams";
      if (step % 9 == 5 && sentences > 1) {
        const int64_t place = step % sentences;
        cached->drop(place);
        uncached->drop(place);
        --sentences;
      }
      if (beams > 1) {
        std::vector<int64_t> from;
        for (int64_t s = 0; s < sentences; ++s) {
          for (int64_t b = 0; b < beams; ++b) from.push_back(s * beams + (b * 2 + step) % beams);
        }
        cached->reorder(at::tensor(from, at::kLong));
        uncached->reorder(at::tensor(from, at::kLong));
      }
    }
  }
}

TEST(Generator, TranslationsDoNotDependOnBatchPaddingOrCache) {
  auto model = small_model();
  Generator generator(model);
  const Ids sources = some_sources(11);
  for (const int64_t beams : {1, 4}) {
    GenerateOptions options{.max_new_tokens = 35, .num_beams = beams};
    const auto together = generator.generate(sources, options);
    int64_t row_steps = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      const auto alone = generator.generate({sources[i]}, options);
      EXPECT_EQ(alone.sentences[0].ids, together.sentences[i].ids) << i;
      EXPECT_NEAR(alone.sentences[0].score, together.sentences[i].score, 1e-5);
      row_steps += alone.row_steps;
    }
    EXPECT_EQ(row_steps, together.row_steps);  // finished sentences take no part
    EXPECT_EQ(ids_of(generator.generate_all(sources, 3, options)), ids_of(together));
    options.use_cache = false;
    EXPECT_EQ(ids_of(generator.generate(sources, options)), ids_of(together));
    for (const auto& source : sources) {
      const auto alone = generator.generate({source}, {.num_beams = beams}).sentences[0];
      EXPECT_LE(alone.ids.size(), std::min<size_t>(2 * source.size() + 10, 48));
    }
  }
}

TEST(Generator, TakesTheStepsThatItsSentencesNeed) {
  Generator generator(small_model());
  const auto result = generator.generate(some_sources(8), {.max_new_tokens = 20});
  int64_t expected = 0;
  std::set<size_t> lengths;
  for (const auto& sentence : result.sentences) {
    expected += static_cast<int64_t>(sentence.ids.size()) + (sentence.finished ? 1 : 0);
    lengths.insert(sentence.ids.size());
    EXPECT_EQ(sentence.finished, sentence.ids.size() < 20);
  }
  EXPECT_EQ(result.row_steps, expected);
  EXPECT_GT(lengths.size(), 1U);
}

// The score of a translation by the forward pass that training uses.
double score_of(Transformer& model, const std::vector<int64_t>& source, const Generated& sentence,
                double penalty) {
  const at::NoGradGuard no_grad;
  model->eval();
  std::vector<int64_t> target{2}, labels = sentence.ids;
  target.insert(target.end(), sentence.ids.begin(), sentence.ids.end());
  if (sentence.finished) {
    labels.push_back(3);
  } else {
    target.pop_back();
  }
  const at::Tensor logits = model(TransformerBatch{pad_ids({source}, 1), pad_ids({target}, 1)});
  const at::Tensor chances = logits.log_softmax(-1).gather(1, at::tensor(labels, at::kLong).unsqueeze(1));
  return chances.sum().item<double>() / std::pow(static_cast<double>(labels.size()), penalty);
}

TEST(Generator, BeamsFindAtLeastAsGoodTranslations) {
  auto model = small_model(4);
  Generator generator(model);
  const Ids sources = some_sources(10);
  const auto greedy = generator.generate(sources, {.max_new_tokens = 25, .length_penalty = 0});
  const auto beams = generator.generate(sources, {.max_new_tokens = 25, .num_beams = 6, .length_penalty = 0});
  double greedy_sum = 0, beam_sum = 0;
  bool differ = false;
  for (size_t i = 0; i < sources.size(); ++i) {
    EXPECT_NEAR(greedy.sentences[i].score, score_of(model, sources[i], greedy.sentences[i], 0), 1e-3);
    EXPECT_NEAR(beams.sentences[i].score, score_of(model, sources[i], beams.sentences[i], 0), 1e-3);
    greedy_sum += greedy.sentences[i].score;
    beam_sum += beams.sentences[i].score;
    differ |= greedy.sentences[i].ids != beams.sentences[i].ids;
  }
  EXPECT_TRUE(differ);
  EXPECT_GT(beam_sum, greedy_sum);
}

// Padding is never chosen, but what the model gives it no other word gets.
TEST(Generator, ScoresAreTheModelsLogProbabilities) {
  auto model = small_model(4);
  {
    const at::NoGradGuard no_grad;
    model->named_parameters()["projection_layer.proj.bias"][1] += 6;  // most of the probability is padding's
  }
  const Ids sources = some_sources(6);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    model->to(dtype);
    Generator generator(model);
    for (const int64_t beams : {1, 2, 5}) {
      for (const bool use_cache : {true, false}) {
        const GenerateOptions options{
            .max_new_tokens = 12, .num_beams = beams, .length_penalty = 0, .use_cache = use_cache};
        const auto result = generator.generate(sources, options);
        for (size_t i = 0; i < sources.size(); ++i) {
          const auto& sentence = result.sentences[i];
          const auto length = static_cast<double>(sentence.ids.size() + (sentence.finished ? 1 : 0));
          EXPECT_EQ(std::count(sentence.ids.begin(), sentence.ids.end(), 1), 0);
          EXPECT_NEAR(sentence.score, score_of(model, sources[i], sentence, 0), 1e-3) << beams << " beams";
          EXPECT_LT(sentence.score, length * std::log(0.5));  // a word has less than half
        }
      }
    }
  }
}

TEST(Generator, LengthPenaltyDividesScores) {
  auto model = small_model(4);
  Generator generator(model);
  const Ids sources = some_sources(6);
  size_t short_words = 0, long_words = 0;
  for (const double penalty : {0.0, 2.0}) {
    const auto result =
        generator.generate(sources, {.max_new_tokens = 25, .num_beams = 5, .length_penalty = penalty});
    for (size_t i = 0; i < sources.size(); ++i) {
      EXPECT_NEAR(result.sentences[i].score, score_of(model, sources[i], result.sentences[i], penalty), 1e-3);
      (penalty == 0 ? short_words : long_words) += result.sentences[i].ids.size();
    }
  }
  EXPECT_GE(long_words, short_words);
}

TEST(Generator, MoreBeamsThanWordsKeepTheLimit) {
  at::manual_seed(1);
  Transformer model(TransformerConfig{.source_vocab_size = 40,
                                      .target_vocab_size = 5,
                                      .seq_len = 8,
                                      .d_model = 32,
                                      .num_layers = 1,
                                      .num_heads = 4,
                                      .d_ff = 48});
  const auto result = Generator(model).generate({{2, 7, 3}}, {.max_new_tokens = 1, .num_beams = 8});
  EXPECT_EQ(result.row_steps, 8);
  EXPECT_LE(result.sentences[0].ids.size(), 1U);
}

TEST(Generator, BeamsOfAModelWithoutNumbersEndToo) {
  auto model = small_model();
  {
    const at::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(NAN);
  }
  const auto result = Generator(model).generate({{2, 7, 3}}, {.max_new_tokens = 5, .num_beams = 3});
  EXPECT_FALSE(result.sentences[0].finished);
  EXPECT_LE(result.row_steps, 15);
}

TEST(Generator, RefusesWhatCannotWork) {
  Generator generator(small_model());
  EXPECT_THROW(generator.generate({{2, 3}}, {.num_beams = 0}), ValueError);
  EXPECT_THROW(generator.generate({{2, 3}}, {.max_new_tokens = -1}), ValueError);
  EXPECT_THROW(generator.generate({{}}), ValueError);
  EXPECT_THROW(generator.generate({{2, 99}}), ValueError);
  EXPECT_THROW(generator.generate({std::vector<int64_t>(60, 5)}), ValueError);
  EXPECT_TRUE(generator.generate({}).sentences.empty());
  EXPECT_THROW(generator.generate({{2, 3}}, {.eos_token_id = 1}), ValueError);
  for (const bool cached : {true, false}) {
    for (const int64_t start : {-1, 1, 99})
      EXPECT_THROW(generator.generate({{2, 3}}, {.start_token_id = start, .use_cache = cached}), ValueError);
  }
}

TEST(Generator, LeavesTheModelInItsMode) {
  auto model = small_model();
  Generator generator(model);
  EXPECT_TRUE(model->is_training());
  generator.generate({{2, 5, 3}}, {.max_new_tokens = 3});
  EXPECT_TRUE(model->is_training());
}

TEST(Transformer, RefusesIdsThatDoNotFit) {
  auto model = small_model();
  const auto refused = [&](const Ids& source, const Ids& target, const char* text) {
    try {
      model(TransformerBatch{pad_ids(source, 1), pad_ids(target, 1)});
      FAIL() << "accepted";
    } catch (const ValueError& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refused({{2, 40, 3}}, {{2}}, "row 0 of the source ids holds 40; the model's vocabulary has 40 entries");
  refused({{2, 3}, {2, 4, 3}}, {{2}, {2, 1, 5}}, "row 1 of the target ids has padding before a token");
  refused({{2, 3}, {}}, {{2}, {2}}, "row 1 of the source ids has no token");
  refused({{2, 3}}, {{2}, {2}}, "2 target sentences for 1 source sentences");
  refused({std::vector<int64_t>(49, 5)}, {{2}}, "has 49 tokens; the model has 48 positions");
}

TEST(Transformer, DropoutOnlyWhileTraining) {
  auto model = small_model();
  const TransformerBatch batch{pad_ids({{2, 5, 6, 3}, {2, 7, 3}}, 1), pad_ids({{2, 8, 9}, {2, 4}}, 1)};
  EXPECT_FALSE(model(batch).equal(model(batch)));
  at::manual_seed(3);
  const at::Tensor first = model(batch);
  at::manual_seed(3);
  EXPECT_TRUE(first.equal(model(batch)));
  EXPECT_TRUE(first.isfinite().all().item<bool>());
  model->eval();
  EXPECT_TRUE(model(batch).equal(model(batch)));
}

}  // namespace
}  // namespace lockstep::models
