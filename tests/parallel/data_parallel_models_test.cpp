// DataParallel around the models that Lockstep has.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/ops/dropout.h"
#include "lockstep/parallel/data_parallel/data_parallel.h"
#include "lockstep/parallel/data_parallel/random_stream.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/resnet.h"
#include "tests/parallel/gradients.h"

namespace lockstep {
namespace {

using testing::expect_close;
using testing::gradients_of;

models::BertForSequenceClassification small_bert(double dropout) {
  models::BertConfig config;
  config.vocab_size = 50;
  config.hidden_size = 16;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.intermediate_size = 32;
  config.max_position_embeddings = 12;
  config.labels = {"entailment", "neutral", "contradiction"};
  models::BertForSequenceClassification model(config);
  model->set_dropout(dropout, dropout);
  return model;
}

models::BertBatch texts(int64_t count) {
  at::manual_seed(5);
  const at::Tensor ids = at::randint(50, {count, 9}, at::kLong);
  at::Tensor mask = at::ones_like(ids);
  for (int64_t i = 0; i < count; ++i) mask[i].narrow(0, 9 - i % 4, i % 4).zero_();
  return {ids, {}, mask};
}

models::BertBatch texts_of(const models::BertBatch& batch, int64_t row) {
  return {batch.input_ids.narrow(0, row, 1), {}, batch.attention_mask.narrow(0, row, 1)};
}

TEST(DataParallelModelsTest, BertIsTheUnreplicatedOne) {
  const auto model = small_bert(0);
  const models::BertForSequenceClassification alone(
      std::dynamic_pointer_cast<models::BertForSequenceClassificationImpl>(model->clone()));
  DataParallel parallel(model, {.replicas = 3});
  const auto batch = texts(7);
  const at::Tensor labels = at::randint(3, {7}, at::kLong);
  const at::Tensor logits = parallel(batch), expected = alone.ptr()->forward(batch);
  expect_close({logits}, {expected});
  at::cross_entropy_loss(logits, labels).backward();
  at::cross_entropy_loss(expected, labels).backward();
  expect_close(gradients_of(*model), gradients_of(*alone));
  // Most gradients were computed in the bucket: nobody else holds their memory.
  EXPECT_TRUE(model->parameters()[0].grad().storage().nbytes() > model->parameters()[0].grad().nbytes());
}

TEST(DataParallelModelsTest, EachReplicaHasARandomStreamThatRepeats) {
  const auto model = small_bert(0.3);
  DataParallel parallel(model, {.replicas = 4});
  models::BertBatch same = texts(1);
  same.input_ids = same.input_ids.expand({4, -1});
  same.attention_mask = same.attention_mask.expand({4, -1});
  at::manual_seed(11);
  const at::Tensor first = parallel(same).detach(), second = parallel(same).detach();
  at::manual_seed(11);
  EXPECT_TRUE(first.equal(parallel(same)));
  EXPECT_FALSE(first.equal(second));
  for (int a = 0; a < 4; ++a) {  // the same text in every replica, and other units dropped
    for (int b = 0; b < a; ++b) EXPECT_FALSE(first[a].equal(first[b]));
  }
  // Replica r's numbers are those of a process that is seeded with replica_seed(key, r).
  at::manual_seed(11);
  const uint64_t key = draw_replica_key();
  const models::BertForSequenceClassification alone(
      std::dynamic_pointer_cast<models::BertForSequenceClassificationImpl>(model->clone()));
  for (int r = 0; r < 4; ++r) {
    at::manual_seed(replica_seed(key, r));
    EXPECT_TRUE(first[r].equal(alone.ptr()->forward(texts_of(same, r))[0])) << r;
  }
}

TEST(DataParallelModelsTest, DropoutHasTheBitsOfTorchs) {
  const at::Tensor x = at::randn({33, 7}).requires_grad_();
  at::manual_seed(4);
  const at::Tensor expected = at::dropout(x, 0.4, true);
  at::Generator generator = at::detail::createCPUGenerator();
  generator.set_current_seed(4);
  const ReplicaGeneratorGuard guard(generator);
  const at::Tensor found = ops::dropout(x, 0.4);
  EXPECT_TRUE(found.equal(expected));
  const at::Tensor gradient = torch::autograd::grad({found.sum()}, {x})[0];
  EXPECT_TRUE(gradient.equal(torch::autograd::grad({expected.sum()}, {x})[0]));
}

TEST(DataParallelModelsTest, ResNetIsTheUnreplicatedOne) {
  models::ResNet model(models::ResNetOptions{
      .num_classes = 5, .stem = models::ResNetOptions::Stem::cifar, .blocks = {1, 1, 1, 1}, .width = 4});
  model->to(at::kDouble);
  model->eval();  // the statistics of a part are not those of the whole
  const models::ResNet alone(std::dynamic_pointer_cast<models::ResNetImpl>(model->clone()));
  DataParallel parallel(model, {.replicas = 2});
  const at::Tensor x = at::randn({5, 3, 8, 8}, at::kDouble);
  const at::Tensor y = parallel(x), expected = alone.ptr()->forward(x);
  expect_close({y}, {expected});
  y.square().sum().backward();
  expected.square().sum().backward();
  for (size_t p = 0; p < alone->parameters().size(); ++p) {
    EXPECT_TRUE(model->parameters()[p].grad().allclose(alone->parameters()[p].grad(), 1e-6, 1e-6)) << p;
  }
}

TEST(DataParallelModelsTest, DropoutOfEverythingIsZero) {
  const ReplicaGeneratorGuard guard(at::detail::createCPUGenerator(4));
  const at::Tensor x = at::randn({5, 3}).requires_grad_();
  const at::Tensor found = ops::dropout(x, 1);
  EXPECT_TRUE(found.eq(0).all().item<bool>());
  EXPECT_TRUE(torch::autograd::grad({found.sum()}, {x})[0].eq(0).all().item<bool>());
}

}  // namespace
}  // namespace lockstep
