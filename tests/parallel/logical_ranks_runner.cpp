// Trains models on logical ranks, one after another, and prints a hash of parameters and buffers after each step:
//   logical_ranks_runner STEPS MODEL:SIZE:OPTIMIZER[:HOW]...
// MODEL: toy, odd, synced, resnet18 or bert. OPTIMIZER: adamw, sgd or zero. HOW, words with commas between: `plain` is
// DistributedDataParallel alone, with as many ranks; `reference` a module alone and sums written out; `no_backward` one whose
// last logical rank makes no backward; `sync` converts batch normalizations; `bf16` is autocast; `apart` makes the last logical
// rank leave a synchronized layer out, `throws` makes it throw in the middle of step 1.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/batchnorm.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/base/random_key.h"
#include "lockstep/comm/init.h"
#include "lockstep/ops/linear.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/autocast.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/resnet.h"
#include "lockstep/zoo/models/toy.h"

namespace {

using namespace lockstep;

constexpr int64_t kMicroBatches = 2;
constexpr uint64_t kSeed = 3;

/// Dropout and batch normalization; a weight that is used three times; one that not every logical rank uses.
struct OddImpl : torch::nn::Module {
  OddImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(16))),
        often(register_parameter("often", at::randn({16, 16}))),
        seldom(register_parameter("seldom", at::randn({16}))),
        bias(register_parameter("bias", at::randn({16}))) {}
  at::Tensor forward(at::Tensor x, bool uses_seldom) {
    for (int i = 0; i < 3; ++i) x = at::dropout(ops::linear(x, often, bias).tanh(), 0.3, is_training());
    x = norm->forward(x);
    return uses_seldom ? x * seldom : x;
  }
  torch::nn::BatchNorm1d norm;
  at::Tensor often, seldom, bias;
};
TORCH_MODULE(Odd);

/// Synchronized batch normalizations with more between them that belongs to a logical rank: dropout, a weight used on both
/// sides, statistics that are not synchronized, a buffer that backward needs and that every forward changes.
struct SyncedImpl : torch::nn::Module {
  SyncedImpl()
      : first(register_module("first", SyncBatchNorm(torch::nn::BatchNormOptions(16)))),
        last(register_module("last", SyncBatchNorm(torch::nn::BatchNormOptions(16)))),
        own(register_module("own", torch::nn::BatchNorm1d(16))),
        often(register_parameter("often", at::randn({16, 16}))),
        seldom(register_parameter("seldom", at::randn({16}))),
        bias(register_parameter("bias", at::randn({16}))),
        size(register_buffer("size", at::ones({16}))) {}
  at::Tensor forward(at::Tensor x, bool uses_seldom, bool leaves_last_out, bool throws) {
    x = at::dropout(ops::linear(x, often, bias).tanh(), 0.3, is_training());
    x = first->forward(x);
    if (throws) throw Error("no more samples");
    x = at::dropout(ops::linear(x, often, bias).tanh(), 0.3, is_training());
    x = own->forward(x);
    {
      const at::NoGradGuard no_grad;
      size.mul_(0.9).add_(x.abs().mean(0), 0.1);
    }
    x = x * size;
    if (!leaves_last_out) x = last->forward(x);
    return uses_seldom ? x * seldom : x;
  }
  SyncBatchNorm first, last;
  torch::nn::BatchNorm1d own;
  at::Tensor often, seldom, bias, size;
};
TORCH_MODULE(Synced);

struct Settings {
  int size;
  std::string optimizer;
  int steps;
  std::string how;
  bool is(const char* word) const { return how.find(word) != std::string::npos; }
};

/// A kind of model: how its loss comes from a logical rank's own samples. Random numbers are those of the pass.
struct Toy {
  using Module = models::ToyModel;
  static Module make() { return {}; }
  static at::Tensor loss(auto& net, int /*rank*/, int64_t /*micro_batch*/) {
    const at::Tensor x = at::randn({20, 10}), y = at::randn({20, 5});
    return at::mse_loss(net(x), y);
  }
};
struct OddKind {
  using Module = Odd;
  static Module make() { return {}; }
  static at::Tensor loss(auto& net, int rank, int64_t /*micro_batch*/) {
    return net(at::randn({6, 16}), rank % 3 == 1).square().mean();
  }
};
struct SyncedKind {
  using Module = Synced;
  static Module make() { return {}; }
  inline static Settings settings{};
  inline static uint64_t step = 0;
  static at::Tensor loss(auto& net, int rank, int64_t /*micro_batch*/) {
    const int64_t rows = 3 + rank % 3;
    const bool is_last = rank + 1 == settings.size;
    const at::Tensor x = at::randn({rows, 16}), y = at::randn({rows, 16});
    return at::mse_loss(
        net(x, rank % 3 == 1, is_last && settings.is("apart"), is_last && step == 1 && settings.is("throws")),
        y);
  }
};
struct ResNet18 {
  using Module = models::ResNet;
  static Module make() {
    return models::ResNet(
        models::ResNetOptions{.num_classes = 10, .stem = models::ResNetOptions::Stem::cifar, .width = 16});
  }
  static at::Tensor loss(auto& net, int /*rank*/, int64_t /*micro_batch*/) {
    const at::Tensor x = at::randn({4, 3, 16, 16}), y = at::randint(10, {4}, at::kLong);
    return at::cross_entropy_loss(net(x), y);
  }
};
struct Bert {
  using Module = models::BertForSequenceClassification;
  static Module make() {
    models::BertConfig config = models::BertConfig::small();
    config.vocab_size = 100;
    config.num_hidden_layers = 2;
    return Module(config);
  }
  static at::Tensor loss(auto& net, int rank, int64_t micro_batch) {
    const int64_t length =
        8 + (3 * rank + micro_batch) % 5;  // a batch of each logical rank has a shape of its own
    const at::Tensor ids = at::randint(1, 100, {4, length}, at::kLong), y = at::randint(2, {4}, at::kLong);
    at::Tensor mask = at::ones_like(ids);
    mask.narrow(0, 1, 1).narrow(1, length - 3, 3).zero_();
    return at::cross_entropy_loss(
        net(models::BertBatch{.input_ids = ids, .token_type_ids = {}, .attention_mask = mask}), y);
  }
};

/// FNV-1a over what the model holds.
uint64_t hash_of(const torch::nn::Module& module) {
  uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&](const at::Tensor& tensor) {
    const at::Tensor dense = tensor.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
    for (size_t i = 0; i < dense.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
  };
  for (const auto& item : module.named_parameters()) add(item.value());
  for (const auto& item : module.named_buffers()) add(item.value());
  return hash;
}

/// The sums of shm::reduce, written out, of gradients that a bare module made.
template <class Kind>
void reference_gradients(typename Kind::Module& net, int size, uint64_t step) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> leaves;
  std::vector<at::Tensor> before, of_first;
  const auto buffers = net->buffers();
  for (const at::Tensor& buffer : buffers) before.push_back(buffer.clone());
  const auto forward = [&](auto&&... args) { return net->forward(std::forward<decltype(args)>(args)...); };
  for (int rank = 0; rank < size; ++rank) {
    for (size_t b = 0; b < buffers.size(); ++b) buffers[b].copy_(before[b]);
    net->zero_grad();
    for (int64_t m = 0; m < kMicroBatches; ++m) {
      const at::AutoGradMode with_gradients(true);
      at::manual_seed(random_key({kSeed, static_cast<uint64_t>(rank), step, static_cast<uint64_t>(m)}));
      Kind::loss(forward, rank, m).backward();
    }
    if (rank == 0) {
      for (const at::Tensor& buffer : buffers) of_first.push_back(buffer.clone());
    }
    auto& leaf = leaves.emplace_back();
    for (const at::Tensor& parameter : net->parameters()) {
      leaf.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::zeros_like(parameter));
    }
  }
  for (; leaves.size() > 1; leaves.resize(leaves.size() / 2)) {
    for (size_t i = 0; i < leaves.size(); i += 2) {
      for (size_t p = 0; p < leaves[i].size(); ++p) leaves[i / 2][p] = leaves[i][p] + leaves[i + 1][p];
    }
  }
  for (size_t b = 0; b < buffers.size(); ++b) buffers[b].copy_(of_first[b]);
  for (size_t p = 0; p < leaves[0].size(); ++p) net->parameters()[p].mutable_grad() = leaves[0][p] / size;
}

template <class Kind>
void train(const World& world, const Settings& settings) {
  at::manual_seed(1);
  auto net = Kind::make();
  net->train();
  constexpr bool kIsSynced = std::is_same_v<Kind, SyncedKind>;
  if constexpr (kIsSynced) Kind::settings = settings;
  if (settings.is("sync")) convert_sync_batchnorm(*net);
  const bool is_reference = settings.is("reference");
  DistributedDataParallel ddp(net, {.first_bucket_cap_mb = 0.01,
                                    .find_unused_parameters = kIsSynced || std::is_same_v<Kind, OddKind>});
  std::optional<LogicalRanks> ranks;
  if (!is_reference && !settings.is("plain"))
    ranks.emplace(ddp, LogicalRanksOptions{.size = settings.size, .seed = kSeed});

  const torch::optim::AdamWOptions adamw(1e-2);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (settings.optimizer == "sgd") {
    optimizer = std::make_unique<FusedSGD>(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  } else if (settings.optimizer == "zero") {
    optimizer = std::make_unique<ZeroRedundancyOptimizer<FusedAdamW>>(net->parameters(), adamw);
  } else {
    optimizer = std::make_unique<FusedAdamW>(net->parameters(), adamw);
  }
  for (int step = 0; step < settings.steps; ++step) {
    const auto number = static_cast<uint64_t>(step);
    if constexpr (kIsSynced) Kind::step = number;
    const auto loss_of = [&](int rank, int64_t micro_batch) {
      const AutocastGuard autocast(settings.is("bf16"));
      return Kind::loss(ddp, rank, micro_batch);
    };
    if (is_reference) {
      reference_gradients<Kind>(net, settings.size, number);
    } else if (ranks) {
      ranks->run_step(number, kMicroBatches, [&](const LogicalPass& pass) {
        if (settings.is("no_backward") && pass.rank == settings.size - 1) return;
        loss_of(pass.rank, pass.micro_batch).backward();
      });
    } else {
      optimizer->zero_grad();
      for (int64_t m = 0; m < kMicroBatches; ++m) {
        using NoSync = typename DistributedDataParallel<typename Kind::Module>::NoSync;
        const std::unique_ptr<NoSync> local(m + 1 < kMicroBatches ? new NoSync(ddp.no_sync()) : nullptr);
        at::manual_seed(
            random_key({kSeed, static_cast<uint64_t>(world.rank()), number, static_cast<uint64_t>(m)}));
        loss_of(world.rank(), m).backward();
      }
    }
    const double norm = clip_grad_norm_(net->parameters(), 0.5);
    optimizer->step();
    // Only the last rank prints: all have the same.
    if (world.rank() + 1 == world.size()) {
      std::printf("step %d norm %.17g hash %016lx\n", step, norm, static_cast<unsigned long>(hash_of(*net)));
    }
  }
}

void train_one(const World& world, int steps, const std::string& job) {
  std::vector<std::string> words(1);
  for (const char c : job) {
    if (c == ':') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  if (words.size() < 3) throw ValueError(job + ": expected MODEL:SIZE:OPTIMIZER[:HOW]");
  const Settings settings{std::stoi(words[1]), words[2], steps, words.size() > 3 ? words[3] : ""};
  if (world.rank() + 1 == world.size()) std::printf("job %s\n", job.c_str());
  if (words[0] == "toy") return train<Toy>(world, settings);
  if (words[0] == "odd") return train<OddKind>(world, settings);
  if (words[0] == "synced") return train<SyncedKind>(world, settings);
  if (words[0] == "resnet18") return train<ResNet18>(world, settings);
  if (words[0] == "bert") return train<Bert>(world, settings);
  throw ValueError(job + ": there is no model " + words[0]);
}

int run(int argc, char** argv) {
  if (argc < 3) throw ValueError("logical_ranks_runner STEPS MODEL:SIZE:OPTIMIZER[:HOW]...");
  const World world = init();
  for (int i = 2; i < argc; ++i) train_one(world, std::stoi(argv[1]), argv[i]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("logical_ranks_runner", [&] { return run(argc, argv); });
}
