// Real models: the same bits whatever the bucket caps.
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "lockstep/optim/sgd.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/resnet.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kClasses = 10;

/// Two steps of `model`, from rank 0's parameters: the gradients, and the parameters after them.
template <class Model, class Input>
std::vector<at::Tensor> train_two_steps(Model model, double bucket_cap_mb, const Input& input) {
  DistributedDataParallel ddp(model, {.bucket_cap_mb = bucket_cap_mb});
  FusedSGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  std::vector<at::Tensor> kept;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const int phase = 10 * step + world().rank();
    const at::Tensor labels = at::arange(4).add(phase).remainder(2);
    at::cross_entropy_loss(ddp(input(phase)), labels).backward();
    keep_gradients(*model, kept);
    optimizer.step();
  }
  for (const at::Tensor& parameter : model->parameters()) kept.push_back(parameter);
  return kept;
}

/// `train(cap)` for caps of which each makes other buckets.
template <class Train>
void check_same_bits(const Train& train) {
  const std::vector<at::Tensor> expected = train(25);
  for (const double cap : {25.0, 1.0 / 1024, 1.0, std::numeric_limits<double>::infinity()}) {
    const std::vector<at::Tensor> found = train(cap);
    for (size_t i = 0; i < expected.size(); ++i) CHECK_EQUAL(expected[i], found[i]);
  }
}

TEST(LargerModels, BucketSizeDoesNotChangeACnnsBits) {
  ONLY_IF(world().size() == 2 && world().backend_name() == "lockstep");  // slow
  check_same_bits([](double cap) {
    at::manual_seed(1);
    return train_two_steps(models::ResNet18(kClasses), cap, [](int phase) {
      return wave({4, 3, 32, 32}, phase);
    });
  });
}

TEST(LargerModels, BucketSizeDoesNotChangeATransformersBits) {
  ONLY_IF(world().size() == 2 && world().backend_name() == "lockstep");  // slow
  check_same_bits([](double cap) {
    at::manual_seed(1);
    models::BertConfig config;
    config.vocab_size = 1000;
    config.hidden_size = 256;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.intermediate_size = 1024;
    return train_two_steps(models::BertForSequenceClassification(config), cap, [](int phase) {
      models::BertBatch batch;
      batch.input_ids = at::arange(4 * 16).mul(7 + phase).remainder(1000).view({4, 16});
      batch.attention_mask = at::ones_like(batch.input_ids);
      batch.token_type_ids = at::zeros_like(batch.input_ids);
      return batch;
    });
  });
}

}  // namespace
}  // namespace lockstep::testing
