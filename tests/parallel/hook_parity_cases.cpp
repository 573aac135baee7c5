// Trains with each communication hook from the values of hook_parity_test.py and prints what came out.
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/hooks/post_local_sgd_hook.h"
#include "lockstep/parallel/hooks/power_sgd_hook.h"
#include "lockstep/parallel/hooks/quantization_hooks.h"
#include "lockstep/parallel/model_averaging.h"
#include "tests/parallel/parity_print.h"

namespace lockstep::testing {
namespace {

struct StackImpl : torch::nn::Module {
  StackImpl() {
    first = register_module("first", torch::nn::Linear(20, 24));
    second = register_module("second", torch::nn::Linear(24, 24));
    third = register_module("third", torch::nn::Linear(24, 24));
    head = register_module("head", torch::nn::Linear(24, 5));
  }
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(third->forward(second->forward(first->forward(x).relu()).relu()).relu());
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr}, head{nullptr};
};
TORCH_MODULE(Stack);

/// Eight steps; `prepare` registers the hook, `after` runs after each.
template <class Prepare, class After>
void train_stack(const std::string& run, double bucket_cap_mb, const Prepare& prepare, const After& after) {
  const int own = world().rank();
  Stack model;
  fill_by_name(*model);
  DistributedDataParallel ddp(model, {.bucket_cap_mb = bucket_cap_mb});
  prepare(ddp);
  FusedSGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    at::mse_loss(ddp(wave({12, 20}, 100 * step + 10 * own + 3)), wave({12, 5}, 100 * step + 10 * own + 7))
        .backward();
    optimizer.step();
    after(model);
  }
  print_module(run, *model);
}

template <class State, class Hook>
void train_with(const std::string& run, double bucket_cap_mb, const State& state, const Hook& hook) {
  train_stack(
      run, bucket_cap_mb, [&](auto& ddp) { ddp.register_comm_hook(state, hook); }, [](const Stack&) {});
}

std::shared_ptr<PowerSGDState> power_sgd(PowerSGDOptions options) {
  options.start_powerSGD_iter = 2;
  options.min_compression_rate = 0.5;
  return std::make_shared<PowerSGDState>(std::nullopt, options);
}

}  // namespace

void hook_parity() {
  train_with("allreduce", kTiny, std::nullopt, allreduce_hook);
  train_with("fp16_compress", kTiny, std::nullopt, fp16_compress_hook);
  train_with("bf16_compress", kTiny, std::nullopt, bf16_compress_hook);
  train_with("fp16_wrapper", 25, std::nullopt, fp16_compress_wrapper(allreduce_hook));
  train_with("power_sgd", 25, power_sgd({.matrix_approximation_rank = 2}), powerSGD_hook);
  train_with(
      "power_sgd_qr", 25,
      power_sgd({.matrix_approximation_rank = 4, .random_seed = 5, .batch_tensors_with_same_shape = true}),
      powerSGD_hook);
  train_with("power_sgd_cold", 25,
             power_sgd({.use_error_feedback = false, .warm_start = false, .orthogonalization_epsilon = 1e-8}),
             powerSGD_hook);
  train_with("batched_power_sgd", 25, power_sgd({}), batched_powerSGD_hook);
  train_with("pertensor", 25, std::nullopt, quantization_pertensor_hook);
  train_with("perchannel", 25, std::nullopt, quantization_perchannel_hook);
  for (const bool allreduce : {true, false}) {
    const auto state =
        std::make_shared<PostLocalSGDState>(std::nullopt, world().new_subgroups(1), 3, allreduce);
    PeriodicModelAverager averager(2, 3);
    train_stack(
        allreduce ? "post_local_sgd" : "post_local_sgd_local", kTiny,
        [&](auto& ddp) { ddp.register_comm_hook(state, post_localSGD_hook); },
        [&](const Stack& model) { averager.average_parameters(model->parameters()); });
  }
  HierarchicalModelAverager averager({{2, 1}, {3, world().size()}}, 3);
  const auto state = std::make_shared<PostLocalSGDState>(std::nullopt, std::nullopt, 3, false);
  train_stack(
      "hierarchical", 25, [&](auto& ddp) { ddp.register_comm_hook(state, post_localSGD_hook); },
      [&](const Stack& model) { averager.average_parameters(model->parameters()); });
}

}  // namespace lockstep::testing
