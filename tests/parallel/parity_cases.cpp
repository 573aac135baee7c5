// Trains the models of ddp_parity_test.py from the same values and prints what came out.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adamw.h>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/join.h"
#include "tests/parallel/ddp_models.h"
#include "tests/parallel/parity_print.h"

namespace lockstep::testing {
namespace {

struct CnnImpl : torch::nn::Module {
  CnnImpl() {
    body = register_module(
        "body", torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3).padding(1)),
                                      torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                                      torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 3).stride(2)),
                                      torch::nn::BatchNorm2d(6), torch::nn::ReLU()));
    head = register_module("head", torch::nn::Linear(6, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return head->forward(body->forward(x).mean({2, 3})); }
  torch::nn::Sequential body{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Cnn);

struct SmallTransformerImpl : torch::nn::Module {
  SmallTransformerImpl() {
    words = register_module("words", torch::nn::Embedding(30, 8));
    layer = register_module(
        "layer", torch::nn::TransformerEncoderLayer(
                     torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0)));
    head = register_module("head", torch::nn::Linear(8, 5));
  }
  /// long [length, batch] -> float [batch, 5]
  at::Tensor forward(const at::Tensor& ids) {
    return head->forward(layer->forward(words->forward(ids)).mean(0));
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::TransformerEncoderLayer layer{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(SmallTransformer);

at::Tensor input_of(const Toy& /*model*/, int step, int rank) { return batch_input(step, rank); }
at::Tensor input_of(const Cnn& /*model*/, int step, int rank) {
  return wave({20, 3, 8, 8}, 100 * step + 10 * rank + 3);
}
at::Tensor input_of(const SmallTransformer& /*model*/, int step, int rank) {
  return at::arange(7 * 20).mul(7 * step + 3 * rank + 1).remainder(30).view({7, 20});
}

/// Ten steps, each of `accumulate` backward passes, all but the last of them under no_sync().
template <class Model>
void train(const std::string& run, const std::string& optimizer_name, int accumulate,
           DistributedDataParallelOptions options) {
  const int own = world().rank();
  Model model;
  fill_by_name(*model);
  DistributedDataParallel ddp(model, options);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (optimizer_name == "sgd") {
    optimizer = std::make_unique<FusedSGD>(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  } else {
    optimizer = std::make_unique<FusedAdamW>(model->parameters(), torch::optim::AdamWOptions(0.01));
  }
  std::vector<double> losses;
  for (int step = 0; step < 10; ++step) {
    optimizer->zero_grad();
    for (int micro = 0; micro < accumulate; ++micro) {
      const int index = step * accumulate + micro;
      const auto backward = [&] {
        const at::Tensor loss = at::mse_loss(ddp(input_of(model, index, own)), batch_target(index, own));
        loss.backward();
        losses.push_back(loss.template item<double>());
      };
      if (micro + 1 < accumulate) {
        const auto guard = ddp.no_sync();
        backward();
      } else {
        backward();
      }
    }
    optimizer->step();
  }
  print_tensor(run, "losses", at::tensor(losses));
  print_module(run, *model);
}

/// The right head is used by everybody, by rank 0 alone, by nobody, in turn; gradients are never dropped.
void train_with_unused_parameters() {
  const int own = world().rank();
  TwoHeads model;
  fill_by_name(*model);
  DistributedDataParallel ddp(model, {.find_unused_parameters = true});
  FusedSGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 9; ++step) {
    optimizer.zero_grad(step % 2 == 0);
    const auto [left, right] = ddp(wave({6, 4}, 10 * step + own));
    const bool uses_right = step % 3 == 0 || (step % 3 == 1 && own == 0);
    (uses_right ? (left + right).square().sum() : left.square().sum()).backward();
    optimizer.step();
  }
  print_module("unused", *model);
}

/// Rank r has 4 + r batches.
void train_with_join(bool initial) {
  const int own = world().rank();
  Cnn model;
  fill_by_name(*model);
  DistributedDataParallel ddp(model);
  FusedSGD optimizer(model->parameters(), 0.1);
  join({ddp},
       [&] {
         for (int step = 0; step < 4 + own; ++step) {
           optimizer.zero_grad();
           at::mse_loss(ddp(input_of(model, step, own)), batch_target(step, own)).backward();
           optimizer.step();
         }
       },
       {.divide_by_initial_world_size = initial});
  print_module(initial ? "join" : "join_by_active", *model);
}

}  // namespace

void parity() {
  train<Toy>("toy", "sgd", 1, {.bucket_cap_mb = 0.0001});
  train<Toy>("toy_no_sync", "sgd", 3, {});
  train<Toy>("toy_beside", "sgd", 3, {.gradient_as_bucket_view = false});
  train<Toy>("toy_adamw", "adamw", 1, {});
  train<Cnn>("cnn", "sgd", 1, {.bucket_cap_mb = 0.0005});
  train<Cnn>("cnn_own_buffers", "sgd", 1, {.broadcast_buffers = false});
  train<SmallTransformer>("transformer", "sgd", 1, {.bucket_cap_mb = 0.001});
  train<SmallTransformer>("transformer_adamw", "adamw", 1, {.static_graph = true});
  train_with_unused_parameters();
  train_with_join(true);
  train_with_join(false);
}

}  // namespace lockstep::testing
