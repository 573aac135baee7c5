// A rank of `lockstep bench ddp`: trains for a while and writes down how long each step took.
//   lockstep-bench-ddp-rank MODEL alone|ddp|in-turn|timeline STEPS OUTPUT_DIRECTORY BUCKET_CAP_MB [HOOK]
// alone: the same work without DistributedDataParallel, at the same time as its neighbor's. in-turn: both in
// turn. timeline: as ddp, but some steps record a timeline and some do not (bench/collectives/in_turn.h).
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <optional>

#include "bench/collectives/in_turn.h"
#include "bench/ddp/torch_resnet.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/hooks/ddp_comm_hooks.h"
#include "lockstep/timeline/recorder.h"
#include "lockstep/timeline/timeline.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/resnet.h"
#include "lockstep/zoo/models/toy.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

/// PSS of this process in KiB: shared pages count in parts.
int64_t proportional_set_size() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    if (word != "Pss:") continue;
    int64_t kib = 0;
    file >> kib;
    return kib;
  }
  throw Error("/proc/self/smaps_rollup has no Pss");
}

/// 26 MB of weights that little is computed with: it shows what averaging costs.
struct MlpImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return third(at::relu(second(at::relu(first(x))))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(1024, 2048));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(2048, 2048));
  torch::nn::Linear third = register_module("third", torch::nn::Linear(2048, 64));
};
TORCH_MODULE(Mlp);

struct Training {
  std::function<void()> step;
  int64_t gradient_bytes = 0;
};

struct Wrapping {
  double bucket_cap_mb = 0;  // 0: no DistributedDataParallel
  std::string hook{};        // its communication hook, if any
};

template <class Model, class Loss>
Training make_training(Model model, std::unique_ptr<torch::optim::Optimizer> optimizer,
                       const Wrapping& wrapping, const Loss& loss) {
  Training training;
  for (const at::Tensor& parameter : model->parameters()) {
    training.gradient_bytes += static_cast<int64_t>(parameter.nbytes());
  }
  const auto shared = std::shared_ptr<torch::optim::Optimizer>(std::move(optimizer));
  if (wrapping.bucket_cap_mb > 0) {
    auto ddp = std::make_shared<DistributedDataParallel<Model>>(
        model, DistributedDataParallelOptions{.bucket_cap_mb = wrapping.bucket_cap_mb});
    // PowerSGD compresses before anything is measured.
    if (!wrapping.hook.empty()) {
      register_ddp_comm_hook(ddp_comm_hook_type(wrapping.hook), *ddp, std::nullopt,
                             {.start_powerSGD_iter = 2});
    }
    training.step = [ddp, shared, loss] {
      shared->zero_grad();
      loss(*ddp).backward();
      shared->step();
    };
  } else {
    training.step = [model, shared, loss]() mutable {
      shared->zero_grad();
      loss(model).backward();
      shared->step();
    };
  }
  return training;
}

template <class Model>
Training picture_training(Model model, const Wrapping& wrapping) {
  auto optimizer =
      std::make_unique<FusedSGD>(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  return make_training(model, std::move(optimizer), wrapping,
                       [x = at::randn({64, 3, 32, 32}), y = at::randint(1000, {64}, at::kLong)](auto& call) {
                         return at::cross_entropy_loss(call(x), y);
                       });
}

Training training_named(const std::string& name, const Wrapping& wrapping) {
  if (name == "toy") {
    models::ToyModel model;
    auto optimizer = std::make_unique<FusedSGD>(model->parameters(), 0.001);
    return make_training(
        model, std::move(optimizer), wrapping,
        [x = at::randn({20, 10}), y = at::randn({20, 5})](auto& call) { return at::mse_loss(call(x), y); });
  }
  if (name == "resnet18") return picture_training(models::ResNet18(1000), wrapping);
  if (name == "resnet18-torch") return picture_training(bench_ddp::TorchResNet(1000), wrapping);
  if (name == "mlp") {
    Mlp model;
    auto optimizer =
        std::make_unique<FusedSGD>(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    return make_training(model, std::move(optimizer), wrapping,
                         [x = at::randn({64, 1024}), y = at::randint(64, {64}, at::kLong)](auto& call) {
                           return at::cross_entropy_loss(call(x), y);
                         });
  }
  if (name == "bert") {
    models::BertConfig config;
    config.hidden_size = 256;
    config.num_hidden_layers = 4;
    config.num_attention_heads = 4;
    config.intermediate_size = 1024;
    models::BertForSequenceClassification model(config);
    auto optimizer = std::make_unique<FusedAdamW>(model->parameters(), torch::optim::AdamWOptions(1e-4));
    models::BertBatch batch;
    batch.input_ids = at::randint(1000, 30000, {16, 64}, at::kLong);
    batch.attention_mask = at::ones_like(batch.input_ids);
    batch.token_type_ids = at::zeros_like(batch.input_ids);
    return make_training(model, std::move(optimizer), wrapping,
                         [batch, y = at::randint(2, {16}, at::kLong)](auto& call) {
                           return at::cross_entropy_loss(call(batch), y);
                         });
  }
  throw ValueError(
      fmt::format("there is no model {}; choose toy, mlp, resnet18, resnet18-torch or bert", name));
}

/// Seconds that a span takes which holds nothing.
double span_seconds() {
  constexpr int kSpans = 20000;
  const auto start = Clock::now();
  for (int i = 0; i < kSpans; ++i) const timeline::Span span("a span of nothing");
  return std::chrono::duration<double>(Clock::now() - start).count() / kSpans;
}

int run(int argc, char** argv) {
  if (argc != 6 && argc != 7) {
    throw ValueError(
        "usage: lockstep-bench-ddp-rank MODEL alone|ddp|in-turn|timeline STEPS OUTPUT_DIRECTORY "
        "BUCKET_CAP_MB [HOOK]");
  }
  const std::string model = argv[1];
  const std::string mode = argv[2];
  const bool in_turn = mode == "in-turn", with_timeline = mode == "timeline";
  Wrapping wrapping;
  if (mode != "alone") wrapping = {std::stod(argv[5]), argc > 6 ? argv[6] : ""};
  const int steps = std::stoi(argv[3]);
  at::set_num_threads(1);
  keep_freed_memory();
  const World world = init();
  at::manual_seed(world.rank());
  const Training training = training_named(model, wrapping);
  const Training without = in_turn ? training_named(model, {}) : Training{};
  const int warm_up = std::min(std::max(steps / 4, 3), 200);
  for (int i = 0; i < warm_up; ++i) {
    if (in_turn) without.step();
    training.step();
  }
  world.barrier();
  std::vector<double> seconds;
  const uint64_t events = timeline::events_recorded();
  const size_t block = bench::block_of(model);
  for (size_t i = 0; i < static_cast<size_t>(steps); ++i) {
    const bool is_with = bench::is_with(i, block);
    std::optional<timeline::Pause> pause;
    if (with_timeline && !is_with) pause.emplace();
    // Without DDP the ranks drift apart: who is ahead would wait for the other one in the first step with it.
    if (in_turn && i > 0 && is_with != bench::is_with(i - 1, block)) world.barrier();
    const auto start = Clock::now();
    in_turn && !is_with ? without.step() : training.step();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::string text = fmt::format("{} {}\n", proportional_set_size() * 1024, training.gradient_bytes);
  if (with_timeline) {
    const auto recorded = static_cast<double>(timeline::events_recorded() - events) / (steps / 2.0);
    text += fmt::format("{} {:.12f}\n", recorded, span_seconds());
  }
  for (const double s : seconds) text += fmt::format("{:.9f}\n", s);
  write_file_atomically(fmt::format("{}/{}", argv[4], world.rank()), text);
  world.barrier();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::skip_library_destructors();
  return lockstep::run_main("lockstep-bench-ddp-rank", [&] { return run(argc, argv); });
}
