// Real models: the same bits whatever the bucket caps, and ResNet-18 as ddp_resnet_parity_test.py trains it.
#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "lockstep/models/bert.h"
#include "lockstep/models/resnet.h"
#include "lockstep/optim/sgd.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kClasses = 10;

/// Two steps of `model`, from rank 0's parameters.
template <class Model, class Input>
std::vector<at::Tensor> train_two_steps(Model model, double bucket_cap_mb, const Input& input) {
  DistributedDataParallel ddp(model, {.bucket_cap_mb = bucket_cap_mb});
  FusedSGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const int phase = 10 * step + world().rank();
    const at::Tensor labels = at::arange(4).add(phase).remainder(2);
    at::cross_entropy_loss(ddp(input(phase)), labels).backward();
    optimizer.step();
  }
  return model->parameters();
}

/// `train(cap)` for caps of which each makes other buckets.
template <class Train>
void check_same_bits(const Train& train) {
  const std::vector<at::Tensor> expected = train(25);
  for (const double cap : {25.0, 1.0 / 1024, 1.0, std::numeric_limits<double>::infinity()}) {
    const std::vector<at::Tensor> found = train(cap);
    for (size_t i = 0; i < expected.size(); ++i) CHECK_TRUE(expected[i].equal(found[i]));
  }
}

void bucket_size_does_not_change_a_cnns_bits() {
  world();
  check_same_bits([](double cap) {
    at::manual_seed(1);
    return train_two_steps(models::ResNet18(kClasses), cap, [](int phase) {
      return wave({4, 3, 32, 32}, phase);
    });
  });
}

void bucket_size_does_not_change_a_transformers_bits() {
  world();
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

/// What is printed of a tensor that is too large to be printed: its sums and its beginning.
void print_digest(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().to(at::kDouble).flatten();
  std::printf("%s %.9g %.9g", name.c_str(), values.sum().item<double>(), values.abs().sum().item<double>());
  for (int64_t i = 0; i < std::min<int64_t>(values.numel(), 64); ++i) {
    std::printf(" %.9g", values.data_ptr<double>()[i]);
  }
  std::printf("\n");
}

void resnet18_parity() {
  models::ResNet18 model(kClasses);
  at::manual_seed(5 + static_cast<uint64_t>(world().rank()));
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) {
      at::Tensor& parameter = item.value();
      if (parameter.dim() > 1) {  // He's initialisation
        const auto inputs = static_cast<double>(parameter.numel() / parameter.size(0));
        parameter.copy_(at::randn(parameter.sizes()) * std::sqrt(2 / inputs));
      } else {
        parameter.fill_(item.key().ends_with("weight") ? 1 : 0);
      }
    }
  }
  // Rounding grows a hundred thousand times in three steps of such a network, whoever computes it.
  model->to(at::kDouble);
  DistributedDataParallel ddp(model);
  FusedSGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const int phase = 100 * step + 10 * world().rank();
    const at::Tensor loss = at::cross_entropy_loss(ddp(at::randn({16, 3, 32, 32}).to(at::kDouble)),
                                                   at::arange(16).add(phase).remainder(kClasses));
    loss.backward();
    optimizer.step();
    if (world().rank() == 0) std::printf("loss%d %.9g\n", step, loss.item<double>());
  }
  if (world().rank() != 0) return;
  for (const auto& item : model->named_parameters()) print_digest(item.key(), item.value());
  for (const auto& item : model->named_buffers()) print_digest(item.key(), item.value());
}

}  // namespace

Cases larger_cases() {
  return {
      {"bucket_size_does_not_change_a_cnns_bits", bucket_size_does_not_change_a_cnns_bits},
      {"bucket_size_does_not_change_a_transformers_bits", bucket_size_does_not_change_a_transformers_bits},
      {"resnet18_parity", resnet18_parity}};
}

}  // namespace lockstep::testing
