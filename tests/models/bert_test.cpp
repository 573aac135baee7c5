#include "lockstep/zoo/models/bert.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/activation_checkpoint.h"

namespace lockstep::models {
namespace {

BertConfig tiny_config() {
  BertConfig config;
  config.vocab_size = 50;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.intermediate_size = 64;
  config.max_position_embeddings = 12;
  return config;
}

BertBatch batch_of(int64_t batch, int64_t length, int64_t padding) {
  at::Tensor mask = at::ones({batch, length}, at::kLong);
  if (padding > 0) mask.narrow(0, 0, 1).narrow(1, length - padding, padding).zero_();
  return {at::randint(1, 50, {batch, length}, at::kLong), at::zeros({batch, length}, at::kLong), mask};
}

TEST(Bert, FreshWeightsFollowTheSeedAndHuggingFacesRule) {
  torch::manual_seed(3);
  const BertForSequenceClassification a(tiny_config());
  torch::manual_seed(3);
  const BertForSequenceClassification b(tiny_config());
  torch::manual_seed(4);
  const BertForSequenceClassification c(tiny_config());
  const auto parameters = a->named_parameters();
  for (const auto& item : parameters) {
    EXPECT_TRUE(at::equal(item.value(), b->named_parameters()[item.key()])) << item.key();
  }
  const at::Tensor word = parameters["bert.embeddings.word_embeddings.weight"];
  EXPECT_FALSE(at::equal(word, c->named_parameters()["bert.embeddings.word_embeddings.weight"]));
  EXPECT_EQ(word[0].abs().max().item<double>(), 0);
  EXPECT_NEAR(word.std().item<double>(), 0.02, 0.002);
  EXPECT_EQ(parameters["bert.encoder.layer.1.output.LayerNorm.weight"].min().item<double>(), 1);
  EXPECT_EQ(parameters["bert.encoder.layer.1.output.LayerNorm.bias"].abs().max().item<double>(), 0);
  EXPECT_EQ(parameters["classifier.bias"].abs().max().item<double>(), 0);
}

// Dropout must be on in training, off in evaluation, follow the seed, and keep the mean.
TEST(Bert, Clones) {
  BertForSequenceClassification model(tiny_config());
  model->eval();
  const auto copy = std::dynamic_pointer_cast<BertForSequenceClassificationImpl>(model->clone());
  ASSERT_NE(copy, nullptr);
  const BertBatch batch = batch_of(2, 5, 1);
  const at::Tensor before = model->forward(batch);
  EXPECT_TRUE(at::equal(copy->forward(batch), before));
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : copy->parameters()) parameter.zero_();
  EXPECT_TRUE(at::equal(model->forward(batch), before));
}

TEST(Bert, DropoutIsRandomInTrainingOnly) {
  torch::manual_seed(0);
  BertForSequenceClassification model(tiny_config());
  for (const int64_t padding : {0, 4}) {
    const BertBatch batch = batch_of(3, 9, padding);
    const at::NoGradGuard no_grad;
    model->eval();
    EXPECT_TRUE(at::equal(model(batch), model(batch)));
    model->train();
    torch::manual_seed(5);
    const at::Tensor first = model(batch);
    EXPECT_FALSE(at::allclose(first, model(batch), 1e-6, 1e-6));
    torch::manual_seed(5);
    EXPECT_TRUE(at::equal(first, model(batch)));
    model->set_dropout(0, 0);
    EXPECT_TRUE(at::equal(model(batch), model(batch)));
    model->set_dropout(0, 0.5);
    EXPECT_FALSE(at::allclose(model(batch), model(batch), 1e-7, 1e-7));
    model->set_dropout(0.1, 0.1);
  }
}

// The path with dropout is another one than without: with a vanishing probability they must agree.
TEST(Bert, GradientCheckpointingChangesNoBit) {
  for (const int64_t padding : {0, 4}) {
    const BertBatch batch = batch_of(3, 9, padding);
    std::vector<at::Tensor> expected;
    for (const bool checkpoints : {false, true}) {
      torch::manual_seed(0);
      BertForSequenceClassification original(tiny_config());
      EXPECT_EQ(set_gradient_checkpointing(*original, checkpoints), 1U);
      // A replica of DataParallel is a clone.
      const auto model = std::dynamic_pointer_cast<BertForSequenceClassificationImpl>(original->clone());
      torch::manual_seed(5);
      const at::Tensor logits = model->forward(batch);
      logits.square().sum().backward();
      std::vector<at::Tensor> all = {logits, at::rand({3})};
      for (const at::Tensor& parameter : model->parameters()) all.push_back(parameter.grad());
      if (!checkpoints) expected = all;
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(all[i].defined(), expected[i].defined()) << i;
        if (all[i].defined()) EXPECT_TRUE(at::equal(all[i], expected[i])) << i;
      }
    }
  }
}

TEST(Bert, AttentionWithAndWithoutDropoutAgree) {
  torch::manual_seed(0);
  BertForSequenceClassification model(tiny_config());
  model->train();
  for (const int64_t padding : {0, 4}) {
    const BertBatch batch = batch_of(3, 9, padding);
    const at::NoGradGuard no_grad;
    model->set_dropout(0, 0);
    const at::Tensor fused = model(batch);
    model->set_dropout(0, 1e-12);
    EXPECT_TRUE(at::allclose(fused, model(batch), 1e-5, 1e-6)) << padding;
  }
}

TEST(Bert, MaskAndTypesMayBeLeftOut) {
  BertForSequenceClassification model(tiny_config());
  model->eval();
  const at::NoGradGuard no_grad;
  BertBatch batch = batch_of(3, 9, 0);
  const at::Tensor logits = model(batch);
  batch.attention_mask = at::Tensor();
  batch.token_type_ids = at::Tensor();
  EXPECT_TRUE(at::equal(logits, model(batch)));
}

TEST(Bert, SequenceOfOnlyPaddingIsNoNaN) {
  BertForSequenceClassification model(tiny_config());
  model->set_dropout(0, 0.1);
  BertBatch batch = batch_of(3, 9, 9);
  EXPECT_TRUE(model(batch).isfinite().all().item<bool>());
  model->eval();
  EXPECT_TRUE(model(batch).isfinite().all().item<bool>());
}

TEST(Bert, BadInputIsAnError) {
  BertForSequenceClassification model(tiny_config());
  EXPECT_THROW(model(batch_of(2, 13, 0)), ValueError);
  BertBatch batch = batch_of(2, 5, 0);
  batch.attention_mask = at::ones({2, 4}, at::kLong);
  EXPECT_THROW(model(batch), ValueError);
  EXPECT_THROW(model->set_dropout(1, 0), ValueError);
  BertConfig config = tiny_config();
  config.hidden_act = "none";
  EXPECT_THROW(BertForSequenceClassification{config}, ValueError);
}

TEST(Bert, TrainsInOtherTypesWithPadding) {
  for (const auto dtype : {at::kDouble, at::kBFloat16}) {
    BertForSequenceClassification model(tiny_config());
    model->to(dtype);
    model->train();
    const at::Tensor logits = model(batch_of(3, 9, 4));
    EXPECT_TRUE(logits.isfinite().all().item<bool>());
    logits.sum().backward();
    EXPECT_EQ(model->parameters()[0].grad().scalar_type(), dtype);
  }
}

}  // namespace
}  // namespace lockstep::models
