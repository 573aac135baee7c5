// Random steps with exceptions at random places on random ranks: `random_steps --steps N --seed S [--verbose]`, a rank
// of lockrun.
//
// The seed chooses models, hook, optimizer and, for each step, what happens in it. All steps are run twice: first with
// the failures; then, with new models, only those steps that succeeded. After each of these the weights and buffers must
// be the same, on all ranks. The last line is "random_steps: N steps, F of them failed: right".
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <typeinfo>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/hooks/ddp_comm_hooks.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/hooks/power_sgd_hook.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/step/step.h"

namespace {

using lockstep::World;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Planned : std::runtime_error {
  using std::runtime_error::runtime_error;
};

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kFloat));
}

/// Hands its input on; its backward throws if `is_bad`.
struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, bool is_bad) {
    context->saved_data["is_bad"] = is_bad;
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (context->saved_data["is_bad"].toBool()) throw Planned("in the backward");
    return {gradients[0], at::Tensor()};
  }
};

/// What a life of models and optimizers is like; from the seed.
struct Config {
  int models = 1;
  int layers = 2;
  double bucket_cap_mb = 25;
  bool has_sync_batch_norm = false, has_embedding = false, finds_unused = false, as_bucket_view = true;
  enum class Hook { none, allreduce, fp16, power_sgd } hook = Hook::none;
  enum class Optimizer { sgd, adamw, zero } optimizer = Optimizer::sgd;

  static Config draw(std::mt19937_64& random) {
    Config config;
    config.models = 1 + static_cast<int>(random() % 3);
    config.layers = std::vector{1, 2, 4, 40}[random() % 4];
    config.bucket_cap_mb = random() % 2 == 0 ? 25 : 1e-6;
    config.has_sync_batch_norm = random() % 3 == 0;
    config.has_embedding = random() % 4 == 0;
    config.finds_unused = random() % 4 == 0;
    config.as_bucket_view = random() % 4 != 0;
    config.hook = static_cast<Hook>(random() % 4);
    config.optimizer = static_cast<Optimizer>(random() % 3);
    if (config.has_embedding) {  // sparse gradients: only plain SGD takes them, and no power SGD
      config.optimizer = Optimizer::sgd;
      if (config.hook == Hook::power_sgd) config.hook = Hook::allreduce;
    }
    return config;
  }
};

enum class Where {
  nowhere,
  reader,            // before anything
  reader_is_caught,  // and the rank goes on: no failure
  forward,           // inside a model's forward
  loss,              // between forward and backward
  loss_is_caught,    // by the body, which goes on with something else
  backward_first,    // before a model's output
  backward_between,  // behind the last model's, before the first one's
  backward_last,     // after all gradients
  before_optimizer,
  skip,
  leaves_early,  // the body, without an exception: the others wait for this rank's forward or backward
};
constexpr int kPlaces = 12;

/// What happens in a step; the same on all ranks but for the data.
struct Plan {
  int step = 0;
  Where where = Where::nowhere;
  int rank = 0, second_rank = -1;
  int micro_batches = 1, bad_micro_batch = 0, bad_model = 0;
  bool is_one_backward = true;
  bool has_collective = false;
  std::vector<int> order;  // of the models' forwards

  static Plan draw(std::mt19937_64& random, int step, const Config& config, int ranks) {
    Plan plan;
    plan.step = step;
    if (random() % 100 < 45) plan.where = static_cast<Where>(1 + random() % (kPlaces - 1));
    plan.rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
    if (random() % 5 == 0) plan.second_rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
    plan.micro_batches = 1 + static_cast<int>(random() % 3);
    plan.bad_micro_batch = static_cast<int>(random() % static_cast<unsigned>(plan.micro_batches));
    // Micro-batches of no_sync() are the body's own: if it catches what goes wrong there, it has left one out.
    if (plan.where == Where::loss_is_caught) plan.bad_micro_batch = plan.micro_batches - 1;
    if (plan.where == Where::leaves_early) plan.second_rank = -1;  // some rank must be left to wait
    plan.bad_model = static_cast<int>(random() % static_cast<unsigned>(config.models));
    plan.is_one_backward = random() % 2 == 0;
    plan.has_collective = random() % 3 == 0;
    for (int m = 0; m < config.models; ++m) plan.order.push_back(m);
    std::shuffle(plan.order.begin(), plan.order.end(), random);
    return plan;
  }
  bool is_bad(int own, int micro_batch) const {
    return (own == rank || own == second_rank) && micro_batch == bad_micro_batch;
  }
  bool fails() const { return where != Where::nowhere && where != Where::reader_is_caught; }
};

constexpr int64_t kWidth = 6, kRows = 5, kWords = 9;

struct NetImpl : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  lockstep::BatchNorm norm{nullptr};
  torch::nn::Embedding words{nullptr};
  bool throws = false;

  NetImpl(const Config& config, uint64_t seed) {
    for (int i = 0; i < config.layers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
    if (config.has_sync_batch_norm) norm = register_module("norm", lockstep::BatchNorm(kWidth));
    if (config.has_embedding) {
      words = register_module("words",
                              torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, kWidth).sparse(true)));
    }
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.copy_(numbers(parameter.sizes(), seed++) * 0.3);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    if (words) y = y + words(x.detach().abs().mul(3).to(at::kLong).remainder(kWords).select(1, 0));
    for (size_t i = 0; i < layers.size(); ++i) {
      y = at::tanh(layers[i](y));
      if (i == 0 && norm) y = norm(y);
      if (throws && i == layers.size() / 2) throw Planned("in the forward");
    }
    return y;
  }
};
TORCH_MODULE(Net);

struct Life {
  Life(const Config& config, const World& world) {
    for (int m = 0; m < config.models; ++m) {
      nets.emplace_back(config, 100 * static_cast<uint64_t>(m + 1));
      if (config.has_sync_batch_norm) lockstep::convert_sync_batchnorm(*nets.back());
      ddps.push_back(std::make_unique<lockstep::DistributedDataParallel<Net>>(
          nets.back(),
          lockstep::DistributedDataParallelOptions{.bucket_cap_mb = config.bucket_cap_mb,
                                                   .find_unused_parameters = config.finds_unused,
                                                   .gradient_as_bucket_view = config.as_bucket_view}));
      add_hook(config, *ddps.back(), world);
      add_optimizer(config, nets.back(), world);
    }
  }

  static void add_hook(const Config& config, lockstep::DistributedDataParallel<Net>& ddp,
                       const World& world) {
    switch (config.hook) {
      case Config::Hook::none:
        return;
      case Config::Hook::allreduce:
        return ddp.register_comm_hook(std::nullopt, lockstep::allreduce_hook);
      case Config::Hook::fp16:
        return ddp.register_comm_hook(std::nullopt, lockstep::fp16_compress_hook);
      case Config::Hook::power_sgd:
        return ddp.register_comm_hook(
            std::make_shared<lockstep::PowerSGDState>(
                world, lockstep::PowerSGDOptions{.start_powerSGD_iter = 3, .min_compression_rate = 1}),
            lockstep::powerSGD_hook);
    }
  }
  void add_optimizer(const Config& config, Net& net, const World& world) {
    const auto parameters = lockstep::parameters(*net);
    switch (config.optimizer) {
      case Config::Optimizer::sgd:
        if (config.has_embedding) {
          optimizers.push_back(
              std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05)));
        } else {
          optimizers.push_back(
              std::make_unique<lockstep::FusedSGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9)));
        }
        return;
      case Config::Optimizer::adamw:
        optimizers.push_back(
            std::make_unique<lockstep::FusedAdamW>(parameters, torch::optim::AdamWOptions(0.01)));
        return;
      case Config::Optimizer::zero:
        optimizers.push_back(std::make_unique<lockstep::ZeroRedundancyOptimizer<lockstep::FusedAdamW>>(
            parameters, torch::optim::AdamWOptions(0.01)));
        return;
    }
    (void)world;
  }

  std::vector<torch::optim::Optimizer*> of_libtorch() const {
    std::vector<torch::optim::Optimizer*> found;
    for (const auto& optimizer : optimizers) {
      const torch::optim::Optimizer& one = *optimizer;
      if (typeid(one) == typeid(torch::optim::SGD)) found.push_back(optimizer.get());
    }
    return found;
  }

  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> tensors;
    for (const Net& net : nets) {
      for (const auto& parameter : net->parameters()) tensors.push_back(parameter.detach().clone());
      for (const auto& buffer : net->buffers()) tensors.push_back(buffer.detach().clone());
    }
    return tensors;
  }

  std::vector<Net> nets;
  std::vector<std::unique_ptr<lockstep::DistributedDataParallel<Net>>> ddps;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
};

class Runner {
 public:
  Runner(const World& world, uint64_t seed) : world_(world), random_(seed), config_(Config::draw(random_)) {}

  /// Returns how many steps failed.
  int run(int steps) {
    std::vector<Plan> plans;
    for (int step = 0; step < steps; ++step)
      plans.push_back(Plan::draw(random_, step, config_, world_.size()));
    std::vector<std::vector<at::Tensor>> states;
    int failed = 0;
    {
      Life life(config_, world_);
      for (const Plan& plan : plans) {
        if (is_verbose && world_.rank() == 0) std::fprintf(stderr, "%s\n", where(plan).c_str());
        if (one(life, plan)) {
          states.push_back(life.state());
          check_same_on_all(states.back(), plan);
        } else {
          ++failed;
          check_zero(life, plan);
        }
      }
    }
    Life life(config_, world_);
    size_t good = 0;
    for (const Plan& plan : plans) {
      if (plan.fails()) continue;
      Plan plain = plan;
      plain.where = Where::nowhere;
      if (!one(life, plain)) throw std::runtime_error("a step without a failure failed");
      compare(life.state(), states.at(good++), plan);
    }
    if (good != states.size()) throw std::runtime_error("more steps succeeded than were to");
    return failed;
  }

  bool is_verbose = false;  ///< a line for each step

  std::string describe() const {
    return "models " + std::to_string(config_.models) + ", layers " + std::to_string(config_.layers) +
           ", cap " + std::to_string(config_.bucket_cap_mb) + ", hook " +
           std::to_string(static_cast<int>(config_.hook)) + ", optimizer " +
           std::to_string(static_cast<int>(config_.optimizer)) +
           (config_.has_sync_batch_norm ? ", SyncBatchNorm" : "") +
           (config_.has_embedding ? ", embedding" : "") +
           (config_.finds_unused ? ", find_unused_parameters" : "") +
           (config_.as_bucket_view ? "" : ", own gradients");
  }

 private:
  /// Whether it succeeded; checks that this is as planned.
  bool one(Life& life, const Plan& plan) {
    const int own = world_.rank();
    std::string error;
    bool succeeded = false;
    try {
      succeeded = lockstep::step(world_, [&] { body(life, plan, own); }, {.optimizers = life.of_libtorch()});
    } catch (const lockstep::StepFailedError& failure) {
      error = failure.what();
      if (std::find(failure.ranks().begin(), failure.ranks().end(), plan.rank) == failure.ranks().end() &&
          std::find(failure.ranks().begin(), failure.ranks().end(), plan.second_rank) ==
              failure.ranks().end()) {
        throw std::runtime_error(where(plan) + ": the error names another rank: " + error);
      }
    }
    if (succeeded == plan.fails()) {
      throw std::runtime_error(where(plan) + (succeeded ? ": succeeded" : ": failed: " + error));
    }
    if (plan.where == Where::skip && !error.empty())
      throw std::runtime_error("a skipped step threw: " + error);
    return succeeded;
  }

  void body(Life& life, const Plan& plan, int own) {
    if (plan.where == Where::leaves_early && own == plan.rank) return;
    for (const auto& optimizer : life.optimizers) optimizer->zero_grad();
    for (int micro = 0; micro < plan.micro_batches; ++micro) {
      std::vector<std::unique_ptr<lockstep::DistributedDataParallel<Net>::NoSync>> local;
      if (micro + 1 < plan.micro_batches) {
        for (auto& ddp : life.ddps) {
          local.push_back(std::unique_ptr<lockstep::DistributedDataParallel<Net>::NoSync>(
              new lockstep::DistributedDataParallel<Net>::NoSync(ddp->no_sync())));
        }
      }
      micro_batch(life, plan, own, micro);
    }
    if (plan.where == Where::before_optimizer && plan.is_bad(own, plan.bad_micro_batch)) {
      throw Planned("before the optimizer");
    }
    for (const auto& optimizer : life.optimizers) optimizer->step();
  }

  void micro_batch(Life& life, const Plan& plan, int own, int micro) {
    const bool is_bad = plan.is_bad(own, micro);
    const auto is_here = [&](Where where) { return is_bad && plan.where == where; };
    if (is_here(Where::skip)) return lockstep::skip_step();
    if (is_here(Where::reader)) throw Planned("in the reader");
    if (is_here(Where::reader_is_caught)) {
      try {
        throw Planned("in the reader");
      } catch (const Planned&) {  // the next batch is as good
      }
    }
    const uint64_t seed = 1000 * static_cast<uint64_t>(plan.step) + 10 * static_cast<uint64_t>(own) +
                          static_cast<uint64_t>(micro);
    at::Tensor x = numbers({kRows, kWidth}, seed).requires_grad_(true);
    x = ThrowsInBackward::apply(x, is_here(Where::backward_last));
    if (plan.has_collective) {
      at::Tensor sum = at::ones({3});
      world_.all_reduce(sum);
      if (sum[0].item<float>() != static_cast<float>(world_.size())) throw std::runtime_error("a wrong sum");
    }
    try {
      forward_and_backward(life, plan, x, is_here);
    } catch (const Planned&) {
      if (plan.where != Where::loss_is_caught) throw;
    }
  }

  template <class IsHere>
  static void forward_and_backward(Life& life, const Plan& plan, const at::Tensor& x, const IsHere& is_here) {
    std::vector<at::Tensor> losses;
    at::Tensor y = x;
    for (const int m : plan.order) {
      const bool is_bad_model = m == plan.bad_model;
      life.nets[static_cast<size_t>(m)]->throws = is_here(Where::forward) && is_bad_model;
      // One backward goes through all models, one after the other.
      y = (*life.ddps[static_cast<size_t>(m)])(plan.is_one_backward ? y : x);
      life.nets[static_cast<size_t>(m)]->throws = false;
      if (plan.is_one_backward && is_bad_model)
        y = ThrowsInBackward::apply(y, is_here(Where::backward_between));
      losses.push_back(y.square().sum());
    }
    if (is_here(Where::loss) || is_here(Where::loss_is_caught)) throw Planned("in the loss");
    if (plan.is_one_backward) {
      return ThrowsInBackward::apply(losses.back(), is_here(Where::backward_first)).backward();
    }
    for (size_t i = 0; i < losses.size(); ++i) {
      const bool is_bad_model = plan.order[i] == plan.bad_model;
      ThrowsInBackward::apply(
          losses[i], is_bad_model && (is_here(Where::backward_first) || is_here(Where::backward_between)))
          .backward({}, /*keep_graph=*/i + 1 < losses.size());
    }
  }

  static std::string where(const Plan& plan) {
    return "step " + std::to_string(plan.step) + ", place " + std::to_string(static_cast<int>(plan.where)) +
           ", rank " + std::to_string(plan.rank) + ", micro-batch " + std::to_string(plan.bad_micro_batch) +
           " of " + std::to_string(plan.micro_batches) + (plan.is_one_backward ? ", one backward" : "");
  }

  void check_same_on_all(const std::vector<at::Tensor>& tensors, const Plan& plan) const {
    for (const at::Tensor& tensor : tensors) {
      at::Tensor first = tensor.clone();
      world_.broadcast(first);
      // BatchNorm's statistics are rank 0's from the next forward on.
      if (!at::equal(first, tensor)) throw std::runtime_error(where(plan) + ": ranks have different weights");
    }
  }
  static void check_zero(const Life& life, const Plan& plan) {
    for (const Net& net : life.nets) {
      for (const auto& parameter : net->named_parameters()) {
        const at::Tensor& gradient = parameter.value().grad();
        if (!gradient.defined()) continue;
        const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
        if (dense.any().item<bool>()) {
          throw std::runtime_error(where(plan) + ": the gradient of " + parameter.key() + " is not zero");
        }
      }
    }
  }
  void compare(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted,
               const Plan& plan) const {
    const bool is_exact = world_.backend_name() == "lockstep";
    for (size_t i = 0; i < got.size(); ++i) {
      const bool same = is_exact ? at::equal(got[i], wanted[i]) : got[i].allclose(wanted[i], 1e-3, 1e-4);
      if (!same) {
        throw std::runtime_error(where(plan) + ": tensor " + std::to_string(i) +
                                 " differs from that of a run without the failed steps by " +
                                 std::to_string((got[i] - wanted[i]).abs().max().item<double>()));
      }
    }
  }

  const World& world_;
  std::mt19937_64 random_;
  Config config_;
};

struct Settings {
  int steps = 0;
  size_t seed = 0;
  bool is_verbose = false;
};

constexpr auto kFlags = std::to_array<lockstep::Flag<Settings>>({
    {.name = "steps",
     .member = &Settings::steps,
     .preset = "20",
     .check = lockstep::FlagCheck::at_least(1, "1 or more"),
     .words = "Steps"},
    {.name = "seed", .member = &Settings::seed, .preset = "1", .words = "What is drawn follows from it"},
    {.name = "verbose", .member = &Settings::is_verbose, .words = "Each rank says what it does"},
});

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("random_steps", [&] {
    const auto settings = lockstep::parse_table<Settings>(
        "random_steps", "Steps with exceptions at random places", kFlags, argc, argv);
    if (!settings) return 0;
    const World world = lockstep::init({.timeout = std::chrono::seconds(60)});
    Runner runner(world, settings->seed);
    runner.is_verbose = settings->is_verbose;
    if (world.rank() == 0) std::printf("%s\n", runner.describe().c_str());
    std::fflush(stdout);
    const int failed = runner.run(settings->steps);
    if (world.rank() == 0)
      std::printf("random_steps: %d steps, %d of them failed: right\n", settings->steps, failed);
    return 0;
  });
}
