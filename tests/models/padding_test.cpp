// Padding changes nothing: a padded batch against its sequences one at a time, in every dtype that LibTorch trains in on
// CPUs, with and without dropout.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>

#include "lockstep/zoo/models/attention.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/transformer/generator.h"
#include "lockstep/zoo/models/transformer/transformer.h"

namespace lockstep::models {
namespace {

using Ids = std::vector<std::vector<int64_t>>;

// The models are too small for several threads to help.
[[maybe_unused]] const int one_thread = (at::set_num_threads(1), 1);

/// At this probability everything is kept, but attention takes the path of dropout.
constexpr double kVanishing = 1e-12;
constexpr float kMasked = -1e30F;

/// What rounding may do, relative to the largest value or to a gradient's norm. A mask that is read wrongly changes more
/// than half of either.
double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-10;
    case at::kFloat:
      return 1e-4;
    case at::kHalf:
      return 0.03;
    default:
      return 0.15;
  }
}

class Padding : public testing::TestWithParam<at::ScalarType> {
 protected:
  Padding() { torch::manual_seed(7); }
  at::ScalarType dtype() const { return GetParam(); }
};

double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().to(at::kDouble), y = b.detach().to(at::kDouble);
  return ((x - y).abs().max() / y.abs().max()).item<double>();
}

double norm_distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

/// All gradients in one vector, which are then removed.
at::Tensor take_gradients(torch::nn::Module& model) {
  std::vector<at::Tensor> all;
  for (at::Tensor& parameter : model.parameters()) {
    const at::Tensor& gradient = parameter.grad();
    EXPECT_TRUE(!gradient.defined() || gradient.scalar_type() == parameter.scalar_type());
    all.push_back((gradient.defined() ? gradient : at::zeros_like(parameter)).to(at::kDouble).reshape(-1));
  }
  model.zero_grad();
  return at::cat(all);
}

/// int64 [lengths.size(), length]: 1 for the first tokens of each row.
at::Tensor mask_of(const std::vector<int64_t>& lengths, int64_t length) {
  return at::arange(length).unsqueeze(0).lt(at::tensor(lengths, at::kLong).unsqueeze(1)).to(at::kLong);
}

at::Tensor bias_of(const at::Tensor& mask) {
  return at::zeros(mask.sizes(), at::kFloat).masked_fill(mask.eq(0), kMasked).unsqueeze(1).unsqueeze(1);
}

// Attention -------------------------------------------------------------------------------------------------------------

// Sizes of a head and lengths that fill no vector of the kernel, and such that do.
TEST_P(Padding, AttentionWithAMaskIsWhatItsFormulaSays) {
  for (const int64_t size : {8, 12, 16, 64}) {
    for (const int64_t length : {1, 3, 8, 15, 16, 17, 33, 513}) {
      if (length > 100 && size != 16) continue;
      for (const double p : {0.0, kVanishing}) {
        const at::Tensor mask = mask_of({length, (length + 1) / 2, 1}, length);
        std::vector<at::Tensor> ours, exact;
        for (int i = 0; i < 3; ++i) {
          ours.push_back(at::randn({3, 2, length, size}, at::kDouble).to(dtype()).requires_grad_());
          exact.push_back(ours.back().detach().to(at::kDouble).requires_grad_());
        }
        const at::Tensor result = dot_product_attention(ours[0], ours[1], ours[2], bias_of(mask), false, p);
        const at::Tensor scores = at::matmul(exact[0], exact[1].transpose(-1, -2)) / std::sqrt(size);
        const at::Tensor expected = at::matmul(at::softmax(scores + bias_of(mask), -1), exact[2]);
        const auto where = [&] { return testing::Message() << size << ", " << length << ", p " << p; };
        ASSERT_EQ(result.scalar_type(), dtype()) << where();
        EXPECT_LT(distance(result, expected), tolerance(dtype())) << where();
        const at::Tensor weights = at::randn(expected.sizes(), at::kDouble);
        (result * weights.to(dtype())).sum().backward();
        (expected * weights).sum().backward();
        for (size_t i = 0; i < 3; ++i) {
          const at::Tensor ours_of = ours[i].grad().to(at::kDouble).reshape(-1);
          // With a single key the gradients of query and key vanish.
          if (i < 2 && length == 1) {
            EXPECT_LT(ours_of.abs().max().item<double>(), tolerance(dtype())) << where();
          } else {
            EXPECT_LT(norm_distance(ours_of, exact[i].grad().reshape(-1)), tolerance(dtype()))
                << where() << ", input " << i;
          }
        }
      }
    }
  }
}

// What stands in the padding has no influence, not in the last bit, and takes no gradient.
TEST_P(Padding, AttentionDoesNotSeeWhatStandsInThePadding) {
  for (const int64_t length : {5, 16, 33}) {
    for (const double p : {0.0, 0.3}) {
      const at::Tensor mask = mask_of({length, length / 2, 1}, length);
      const at::Tensor padding =
          mask.eq(0).unsqueeze(1).unsqueeze(-1);  // of keys [batch, heads, length, size]
      const at::Tensor query = at::randn({3, 2, length, 16}).to(dtype());
      const at::Tensor key = at::randn({3, 2, length, 16}).to(dtype());
      const at::Tensor value = at::randn({3, 2, length, 16}).to(dtype());
      const at::Tensor weights = at::randn({3, 2, length, 16}).to(dtype());
      std::vector<at::Tensor> first;
      for (const double filling : {0.0, 50.0}) {
        const at::Tensor q = query.clone().requires_grad_();
        const at::Tensor k = key.masked_fill(padding, filling).requires_grad_();
        const at::Tensor v = value.masked_fill(padding, filling).requires_grad_();
        torch::manual_seed(5);
        const at::Tensor result = dot_product_attention(q, k, v, bias_of(mask), false, p);
        (result * weights).sum().backward();
        EXPECT_EQ(k.grad().masked_select(padding).abs().max().item<double>(), 0) << length << ", p " << p;
        EXPECT_EQ(v.grad().masked_select(padding).abs().max().item<double>(), 0) << length << ", p " << p;
        const std::vector<at::Tensor> now{result.detach(), q.grad(), k.grad(), v.grad()};
        for (size_t i = 0; i < first.size(); ++i)
          EXPECT_TRUE(first[i].equal(now[i])) << length << ", p " << p << ", tensor " << i;
        first = now;
      }
      torch::manual_seed(6);
      const at::Tensor other = dot_product_attention(query, key, value, bias_of(mask), false, p);
      torch::manual_seed(7);
      EXPECT_EQ(other.equal(dot_product_attention(query, key, value, bias_of(mask), false, p)), p == 0);
    }
  }
}

// BERT ------------------------------------------------------------------------------------------------------------------

BertForSequenceClassification padding_bert(at::ScalarType dtype, double p) {
  BertConfig config;
  config.vocab_size = 60;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.intermediate_size = 48;
  config.max_position_embeddings = 40;
  config.initializer_range = 0.3;  // sharp: what is attended to matters
  torch::manual_seed(11);
  BertForSequenceClassification model(config);
  model->to(dtype);
  model->set_dropout(p, p);
  return model;
}

TEST_P(Padding, BertOfABatchIsBertOfEachSequence) {
  for (const double p : {0.0, kVanishing}) {
    auto model = padding_bert(dtype(), p);
    const int64_t labels = static_cast<int64_t>(model->config().labels.size());
    for (const int64_t length : {7, 16, 33}) {
      const std::vector<int64_t> lengths{length, 1, length / 2, length - 1, 3};
      const at::Tensor ids = at::randint(1, 60, {5, length}, at::kLong), mask = mask_of(lengths, length);
      const at::Tensor types = at::randint(0, 2, {5, length}, at::kLong);
      const at::Tensor together = model->forward({ids, types, mask});
      ASSERT_EQ(together.scalar_type(), dtype() == at::kDouble ? at::kDouble : at::kFloat);
      const at::Tensor weights = at::randn({5, labels}).to(together.scalar_type());
      (together * weights).sum().backward();
      const at::Tensor gradients = take_gradients(*model);
      std::vector<at::Tensor> alone;
      for (int64_t i = 0; i < 5; ++i) {
        const auto cut = [&](const at::Tensor& x) {
          return x.narrow(0, i, 1).narrow(1, 0, lengths[static_cast<size_t>(i)]);
        };
        alone.push_back(model->forward({cut(ids), cut(types), {}}));
        (alone.back() * weights.narrow(0, i, 1)).sum().backward();
      }
      EXPECT_LT(distance(together, at::cat(alone)), tolerance(dtype())) << length << ", p " << p;
      EXPECT_LT(norm_distance(gradients, take_gradients(*model)), tolerance(dtype()))
          << length << ", p " << p;
    }
  }
}

// Padding before and between tokens keeps its positions: each row alone, with its mask, and in double precision.
TEST_P(Padding, BertTakesPaddingAnywhere) {
  for (const double p : {0.0, kVanishing}) {
    auto model = padding_bert(dtype(), p);
    auto exact = padding_bert(at::kDouble, p);
    for (const bool begins_with_padding : {false, true}) {
      const int64_t length = 19;
      const at::Tensor ids = at::randint(1, 60, {4, length}, at::kLong);
      at::Tensor mask = at::rand({4, length}).gt(0.5).to(at::kLong);
      mask.select(1, 0).fill_(begins_with_padding ? 0 : 1);
      mask.select(1, 1).fill_(1);
      const at::Tensor together = model->forward({ids, {}, mask});
      together.sum().backward();
      const at::Tensor gradients = take_gradients(*model);
      std::vector<at::Tensor> alone;
      for (int64_t i = 0; i < 4; ++i) {
        alone.push_back(model->forward({ids.narrow(0, i, 1), {}, mask.narrow(0, i, 1)}));
        alone.back().sum().backward();
      }
      EXPECT_LT(distance(together, at::cat(alone)), tolerance(dtype()));
      EXPECT_LT(norm_distance(gradients, take_gradients(*model)), tolerance(dtype()));
      EXPECT_LT(distance(together, exact->forward({ids, {}, mask})), 2 * std::max(1e-4, tolerance(dtype())));
    }
  }
}

// With dropout: the seed and the tokens decide, to the bit, not what stands in the padding.
TEST_P(Padding, BertWithDropoutDoesNotSeeWhatStandsInThePadding) {
  auto model = padding_bert(dtype(), 0.3);
  for (const bool begins_with_padding : {false, true}) {
    at::Tensor mask = mask_of({17, 9, 2, 16}, 17);
    if (begins_with_padding) mask.narrow(1, 0, 2).zero_();
    if (begins_with_padding) mask.select(1, 2).fill_(1);
    at::Tensor keep = mask.ne(0);
    keep.select(1, 0).fill_(true);  // the pooler reads the first position, as transformers' does
    const at::Tensor ids = at::randint(1, 60, {4, 17}, at::kLong);
    std::vector<at::Tensor> first;
    for (int64_t filling : {5, 23}) {
      torch::manual_seed(3);
      const at::Tensor logits = model->forward({ids.masked_fill(~keep, filling), {}, mask});
      logits.sum().backward();
      const std::vector<at::Tensor> now{logits.detach(), take_gradients(*model)};
      for (size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(first[i].equal(now[i])) << begins_with_padding << ", tensor " << i;
      first = now;
    }
  }
}

TEST_P(Padding, BertOfNothingButPaddingHasNumbers) {
  for (const double p : {0.0, 0.1}) {
    auto model = padding_bert(dtype(), p);
    at::Tensor mask = mask_of({9, 0, 4}, 9);
    const at::Tensor logits = model->forward({at::randint(1, 60, {3, 9}, at::kLong), {}, mask});
    logits.sum().backward();
    EXPECT_TRUE(logits.isfinite().all().item<bool>()) << p;
    EXPECT_TRUE(take_gradients(*model).isfinite().all().item<bool>()) << p;
  }
}

// Transformer -----------------------------------------------------------------------------------------------------------

Transformer padding_transformer(at::ScalarType dtype, double p) {
  torch::manual_seed(11);
  Transformer model(TransformerConfig{.source_vocab_size = 40,
                                      .target_vocab_size = 30,
                                      .seq_len = 48,
                                      .d_model = 32,
                                      .num_layers = 2,
                                      .num_heads = 4,
                                      .d_ff = 48,
                                      .dropout = p});
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() > 1) parameter.mul_(1.5);
  }
  model->to(dtype);
  return model;
}

std::vector<int64_t> random_sentence(int64_t length, int64_t words) {
  const at::Tensor ids = at::randint(4, words, {length}, at::kLong);
  return {ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + length};
}

TEST_P(Padding, TransformerOfABatchIsTransformerOfEachPair) {
  for (const double p : {0.0, kVanishing}) {
    auto model = padding_transformer(dtype(), p);
    for (const int64_t longest : {7, 16, 33}) {
      Ids sources, targets;
      for (const int64_t length : {longest, int64_t{1}, longest / 2, longest - 1, int64_t{3}}) {
        sources.push_back(random_sentence(length, 40));
        targets.push_back(random_sentence(longest + 1 - length, 30));
      }
      const at::Tensor together = model->forward({pad_ids(sources, 1), pad_ids(targets, 1)});
      ASSERT_EQ(together.scalar_type(), dtype());
      const at::Tensor weights = at::randn(together.sizes()).to(dtype());
      (together * weights).sum().backward();
      const at::Tensor gradients = take_gradients(*model);
      std::vector<at::Tensor> alone;
      int64_t row = 0;
      for (size_t i = 0; i < sources.size(); ++i) {
        alone.push_back(model->forward({pad_ids({sources[i]}, 1), pad_ids({targets[i]}, 1)}));
        (alone.back() * weights.narrow(0, row, alone.back().size(0))).sum().backward();
        row += alone.back().size(0);
      }
      EXPECT_LT(distance(together, at::cat(alone)), tolerance(dtype())) << longest << ", p " << p;
      EXPECT_LT(norm_distance(gradients, take_gradients(*model)), tolerance(dtype()))
          << longest << ", p " << p;
    }
  }
}

// More columns of padding on both sides are no other batch.
TEST_P(Padding, TransformerDoesNotCountColumnsOfPadding) {
  auto model = padding_transformer(dtype(), kVanishing);
  const Ids sources{random_sentence(5, 40), random_sentence(11, 40)},
      targets{random_sentence(9, 30), random_sentence(2, 30)};
  const auto wider = [](const at::Tensor& ids, int64_t columns) {
    return at::cat({ids, at::ones({ids.size(0), columns}, at::kLong)}, 1);
  };
  const at::Tensor narrow = model->forward({pad_ids(sources, 1), pad_ids(targets, 1)});
  for (const int64_t columns : {1, 8, 60}) {  // 60: past the model's positions
    const at::Tensor wide =
        model->forward({wider(pad_ids(sources, 1), columns), wider(pad_ids(targets, 1), columns)});
    EXPECT_LT(distance(wide, narrow), tolerance(dtype())) << columns;
  }
}

// Generator -------------------------------------------------------------------------------------------------------------

// The cached decoder of a padded batch against forward() of each sentence, token by token.
TEST_P(Padding, CachedDecoderOfABatchIsForwardOfEachSentence) {
  const at::NoGradGuard no_grad;
  auto model = padding_transformer(dtype(), 0);
  model->eval();
  const DecoderWeights weights(*model);
  Ids sources;
  for (const int64_t length : {9, 1, 16, 4, 23}) sources.push_back(random_sentence(length, 40));
  for (const int64_t beams : {1, 3}) {
    const auto state = cached_decoder(*model, weights, model->encode(pad_ids(sources, 1)), beams);
    const auto rows = static_cast<int64_t>(sources.size()) * beams;
    at::Tensor read = at::zeros({rows, 0}, at::kLong);
    for (int step = 0; step < 6; ++step) {
      const at::Tensor ids = at::randint(4, 30, {rows}, at::kLong);
      read = at::cat({read, ids.unsqueeze(1)}, 1);
      const at::Tensor logits = state->step(ids);
      ASSERT_EQ(logits.scalar_type(), dtype());
      for (int64_t row = 0; row < rows; ++row) {
        const auto sentence = static_cast<size_t>(row / beams);
        const at::Tensor alone = model->forward({pad_ids({sources[sentence]}, 1), read.narrow(0, row, 1)});
        EXPECT_LT(distance(logits[row], alone[step]), tolerance(dtype()))
            << "row " << row << ", step " << step;
      }
    }
  }
}

// The mean of forward()'s log-probabilities of the sentence's words and its end.
double mean_log_probability(Transformer& model, const std::vector<int64_t>& source,
                            const Generated& sentence) {
  const at::NoGradGuard no_grad;
  model->eval();
  std::vector<int64_t> target{2}, words = sentence.ids;
  target.insert(target.end(), words.begin(), words.end());
  if (sentence.finished) {
    words.push_back(3);
  } else {
    target.pop_back();
  }
  const at::Tensor log_probs =
      at::log_softmax(model->forward({pad_ids({source}, 1), pad_ids({target}, 1)}), -1, at::kDouble);
  double sum = 0;
  for (size_t i = 0; i < words.size(); ++i)
    sum += log_probs[static_cast<int64_t>(i)][words[i]].item<double>();
  return sum / static_cast<double>(words.size());
}

TEST_P(Padding, TranslationsOfABatchAreThoseOfEachSentence) {
  auto model = padding_transformer(dtype(), 0.3);
  Generator generator(model);
  Ids sources;
  for (const int64_t length : {9, 1, 16, 4, 23}) sources.push_back(random_sentence(length, 40));
  const bool is_exact = dtype() == at::kDouble || dtype() == at::kFloat;
  for (const int64_t beams : {1, 4}) {
    for (const bool use_cache : {true, false}) {
      const GenerateOptions options{.max_new_tokens = 12, .num_beams = beams, .use_cache = use_cache};
      const auto together = generator.generate(sources, options);
      for (size_t i = 0; i < sources.size(); ++i) {
        const auto& sentence = together.sentences[i];
        // Rounding of float16 and bfloat16 may change a choice, but not how probable the sentence is.
        EXPECT_NEAR(sentence.score, mean_log_probability(model, sources[i], sentence), tolerance(dtype()));
        if (!is_exact) continue;
        const auto alone = generator.generate({sources[i]}, options).sentences[0];
        EXPECT_EQ(sentence.ids, alone.ids) << i << ", " << beams << " beams";
        EXPECT_NEAR(sentence.score, alone.score, tolerance(dtype()));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, Padding,
                         testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kHalf),
                         [](const auto& type) { return std::string(at::toString(type.param)); });

// Autocast --------------------------------------------------------------------------------------------------------------

class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype) {
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
};

TEST(PaddingUnderAutocast, ABatchIsEachSequenceInTurn) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const double p : {0.0, kVanishing}) {
      auto bert = padding_bert(at::kFloat, p);
      auto transformer = padding_transformer(at::kFloat, p);
      const std::vector<int64_t> lengths{17, 3, 9};
      Ids sources;
      for (const int64_t length : lengths) sources.push_back(random_sentence(length, 30));
      const at::Tensor ids = pad_ids(sources, 1), mask = mask_of(lengths, 17);
      const Autocast autocast(dtype);
      const at::Tensor together[] = {bert->forward({ids, {}, mask}), transformer->forward({ids, ids})};
      std::vector<at::Tensor> alone[2];
      for (const auto& source : sources) {
        const at::Tensor one = pad_ids({source}, 1);
        alone[0].push_back(bert->forward({one, {}, {}}));
        alone[1].push_back(transformer->forward({one, one}));
      }
      for (size_t i = 0; i < 2; ++i)
        EXPECT_LT(distance(together[i], at::cat(alone[i])), tolerance(dtype))
            << i << ", " << dtype << ", p " << p;
      const at::Tensor nothing = bert->forward({ids, {}, at::zeros_like(mask)});
      EXPECT_TRUE(nothing.isfinite().all().item<bool>()) << dtype << ", p " << p;
    }
  }
}

}  // namespace
}  // namespace lockstep::models
