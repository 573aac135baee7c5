// DataParallel beside DistributedDataParallel on as many ranks: the same parts of a batch, the same bits.
#include "lockstep/parallel/data_parallel/data_parallel.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "lockstep/optim/adamw.h"
#include "lockstep/parallel/data_parallel/random_stream.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/resnet.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

models::BertForSequenceClassification small_bert(double dropout) {
  models::BertConfig config;
  config.vocab_size = 60;
  config.hidden_size = 32;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.intermediate_size = 48;
  config.max_position_embeddings = 16;
  config.labels = {"entailment", "neutral", "contradiction"};
  at::manual_seed(1);
  models::BertForSequenceClassification model(config);
  model->set_dropout(dropout, dropout);
  return model;
}

constexpr int64_t kEach = 4;  // samples of a replica

models::BertBatch texts(int step, int64_t count) {
  at::manual_seed(100 + static_cast<uint64_t>(step));
  const at::Tensor ids = at::randint(60, {count, 11}, at::kLong);
  at::Tensor mask = at::ones_like(ids);
  for (int64_t i = 0; i < count; ++i) mask[i].narrow(0, 11 - i % 4, i % 4).zero_();
  return {ids, {}, mask};
}
at::Tensor labels(int step, int64_t count) {
  at::manual_seed(200 + static_cast<uint64_t>(step));
  return at::randint(3, {count}, at::kLong);
}

models::BertBatch part_of(const models::BertBatch& batch, int64_t rank) {
  return {batch.input_ids.narrow(0, rank * kEach, kEach),
          {},
          batch.attention_mask.narrow(0, rank * kEach, kEach)};
}

bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

/// Three steps of AdamW; `step(model, s)` leaves gradients.
template <class M>
void train(M& model, const std::function<void(int)>& step) {
  FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int s = 0; s < 3; ++s) {
    optimizer.zero_grad();
    at::manual_seed(300 + static_cast<uint64_t>(s));
    step(s);
    optimizer.step();
  }
}

template <class M>
void check_same_bits(const M& a, const M& b) {
  for (size_t p = 0; p < a->parameters().size(); ++p) {
    CHECK_EQUAL(a->parameters()[p], b->parameters()[p]);
  }
  for (size_t p = 0; p < a->buffers().size(); ++p) CHECK_EQUAL(a->buffers()[p], b->buffers()[p]);
}

TEST(DataParallel, BertHasTheBitsOfDdp) {
  const World& world = testing::world();
  const int64_t rows = kEach * world.size();
  auto distributed = small_bert(0.2), gathered = small_bert(0.2), in_forward = small_bert(0.2);
  DistributedDataParallel ddp(distributed);
  train(distributed, [&](int s) {
    const auto batch = part_of(texts(s, rows), world.rank());
    const auto target = labels(s, rows).narrow(0, world.rank() * kEach, kEach);
    at::manual_seed(300 + static_cast<uint64_t>(s));
    at::manual_seed(replica_seed(draw_replica_key(), world.rank()));
    at::cross_entropy_loss(ddp(batch), target).backward();
  });
  const auto whole_step = [&](auto& model, int s, const auto& loss_of) {
    const auto batch = texts(s, rows);
    const auto target = labels(s, rows);
    at::manual_seed(300 + static_cast<uint64_t>(s));
    loss_of(model, batch, target).backward();
  };
  DataParallel with_criterion(in_forward, {.replicas = world.size(), .threads_per_replica = 1});
  const DataParallelCriterion criterion(
      [](auto& logits, auto& target) { return at::cross_entropy_loss(logits, target); });
  train(in_forward, [&](int s) {
    whole_step(with_criterion, s,
               [&](auto& model, auto& batch, auto& target) { return criterion(model, target, batch); });
  });
  check_same_bits(distributed, in_forward);
  DataParallel with_gather(gathered, {.replicas = world.size(), .threads_per_replica = 1});
  train(gathered, [&](int s) {
    whole_step(with_gather, s, [&](auto& model, auto& batch, auto& target) {
      return at::cross_entropy_loss(model(batch), target);
    });
  });
  // 1 / (3 n) is not a third of 1 / n: elsewhere the last bit may differ.
  if (is_power_of_two(world.size())) {
    check_same_bits(distributed, gathered);
  } else {
    for (size_t p = 0; p < gathered->parameters().size(); ++p) {
      CHECK_CLOSE(gathered->parameters()[p], distributed->parameters()[p], 1e-3, 1e-4);
    }
  }
}

TEST(DataParallel, ResNetHasTheBitsOfDdp) {
  const World& world = testing::world();
  const int64_t rows = 8 * world.size();
  const auto make = [] {
    at::manual_seed(2);
    return models::ResNet(models::ResNetOptions{
        .num_classes = 3, .stem = models::ResNetOptions::Stem::cifar, .blocks = {1, 1, 1, 1}, .width = 8});
  };
  auto distributed = make(), replicated = make();
  DistributedDataParallel ddp(distributed);
  const auto images = [&](int s) {
    at::manual_seed(400 + static_cast<uint64_t>(s));
    return at::randn({rows, 3, 16, 16});
  };
  train(distributed, [&](int s) {
    const at::Tensor mine = images(s).narrow(0, world.rank() * 8, 8);
    at::cross_entropy_loss(ddp(mine), labels(s, rows).narrow(0, world.rank() * 8, 8)).backward();
  });
  DataParallel parallel(replicated, {.replicas = world.size(), .threads_per_replica = 1});
  const DataParallelCriterion criterion(
      [](auto& logits, auto& target) { return at::cross_entropy_loss(logits, target); });
  train(replicated, [&](int s) { criterion(parallel, labels(s, rows), images(s)).backward(); });
  for (size_t p = 0; p < distributed->parameters().size(); ++p) {
    CHECK_EQUAL(distributed->parameters()[p], replicated->parameters()[p]);
  }
  if (world.rank() != 0) return;  // its batch normalization's statistics are those that others take over
  for (size_t b = 0; b < distributed->buffers().size(); ++b) {
    CHECK_EQUAL(distributed->buffers()[b], replicated->buffers()[b]);
  }
}

}  // namespace
}  // namespace lockstep::testing
