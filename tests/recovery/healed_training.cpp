// A short training whose ranks die where they are told to: `healed_training --steps N --optimizer NAME`, a rank of lockrun.
// `--times yes` prints when each step has ended; `--plain yes` steps without the Recovery. `--norm own`: BatchNorm, the
// statistics of which are each rank's own; `--norm rank0`: they are sent around, as DistributedDataParallel does it by default.
// `--models 2`: a second model learns what the first one gets wrong, with an optimizer of its own. `--hook power` or batched:
// PowerSGD, in several buckets. `--logical N`: N logical ranks, with two micro-batches each. `--subgroups yes`: even and odd
// ranks have process groups of their own, and use them in each step. `--accumulate yes`: two passes a step, the first one in
// no_sync(). `--recoveries 2`: another Recovery is made, and goes before the steps; 3: it stays, and none of its steps is made.
//
// Places of deaths (deaths.h): data, forward, backward, before (the optimizer), updated (the first of two), after (it),
// between (two steps), setup (before Recovery), again (there, of a process that takes the place of another one), healed (when
// another rank has just been replaced), end (after Recovery). With HEAL_EVALUATES=yes each fourth step is an evaluation; places: evaluation, evaluated. HEAL_LATE=yes: a collective behind the optimizer's step(); place:
// late. HEAL_SKIPS=yes: each third step is skipped after its backward.
// HEAL_CATCHES=yes: a step that has failed is made again.
// HEAL_HOLDS=yes: the third step waits until a spare waits, and the last rank until somebody ends it.
// HEAL_COMES_LATE=yes: rank 1 is in Recovery's constructor until a rank has died, for a second at most.
// HEAL_LINGERS=yes: where no rank had died when it began, rank 0 is behind the last step, before Recovery's end, until it is ended.
// HEAL_DROPS=yes: a process group is made before Recovery and goes after it.
// HEAL_UNWAITED=yes: operations are started before Recovery, and nobody waits for them; message: rank 0 receives one that comes later.
// HEAL_PARTS=leaves or deserts: after the last step rank 0 waits until the others are there; place: parting. With leaves they have
// left their Recovery by then, with deserts they leave it when a rank is replaced.
// HEAL_TELLS=threads: each fourth step prints how many threads the process has. HEAL_TELLS=outlives: what has become of the notes
// for another machine.
// Place cleared: when the ranks are about to connect anew, as another one was replaced; from another thread.
// Every rank prints "rank R of N: steps S hash H" in the end.
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <fmt/format.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "deaths.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/comm/backends/healable_group.h"
#include "lockstep/comm/init.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/hooks/power_sgd_hook.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/recovery/recovery.h"
#include "lockstep/state/counters.h"
#include "lockstep/step/replica_hash.h"

namespace {

using lockstep::test::Deaths;
using lockstep::test::setting;

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t width, bool has_norm)
      : first(register_module("first", torch::nn::Linear(8, width))),
        second(register_module("second", torch::nn::Linear(width, width))),
        third(register_module("third", torch::nn::Linear(width, 4))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))) {
    if (has_norm) norm = register_module("norm", torch::nn::BatchNorm1d(width));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = dropout(at::relu(norm ? norm(first(x)) : first(x)));
    if (in_forward) in_forward();
    h = at::relu(second(h));
    if (in_backward && h.requires_grad()) {
      h.register_hook([this](const at::Tensor& gradient) {
        in_backward();
        return gradient;
      });
    }
    return third(dropout(h));
  }
  torch::nn::Linear first, second, third;
  torch::nn::Dropout dropout;
  torch::nn::BatchNorm1d norm{nullptr};
  std::function<void()> in_forward, in_backward;
};
TORCH_MODULE(Net);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Net& net,
                                                        lockstep::DistributedDataParallel<Net>& ddp) {
  const auto parameters = lockstep::parameters(net);
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.01));
  if (name == "momentum")
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
  if (name == "adam")
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
  if (name == "our_adamw")
    return std::make_unique<lockstep::FusedAdamW>(parameters, torch::optim::AdamWOptions(0.01));
  if (name == "fused_zero")
    return std::make_unique<lockstep::FusedZeroRedundancyOptimizer<lockstep::FusedAdamW>>(
        ddp, torch::optim::AdamWOptions(0.01));
  if (name == "shared_zero")
    return std::make_unique<lockstep::FusedZeroRedundancyOptimizer<lockstep::FusedSGD>>(
        ddp, torch::optim::SGDOptions(0.01).momentum(0.9),
        lockstep::FusedZeroRedundancyOptimizerOptions{.shared_parameters = true, .protect_parameters = true});
  if (name == "zero")
    return std::make_unique<lockstep::ZeroRedundancyOptimizer<torch::optim::Adam>>(
        parameters, torch::optim::AdamOptions(0.01));
  if (name == "our_sgd")
    return std::make_unique<lockstep::FusedSGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
  throw std::runtime_error("no such optimizer: " + name);
}

template <class Condition>
void wait_until(const Condition& is_true) {
  const double deadline = lockstep::monotonic_seconds() + 60;
  while (!is_true()) {
    if (lockstep::monotonic_seconds() > deadline)
      throw std::runtime_error("what is waited for does not come");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// After the last step.
void part(const lockstep::World& world, const Deaths& deaths, std::unique_ptr<lockstep::Recovery>& recovery) {
  const auto file = [](int rank) { return fmt::format("{}/parting{}", setting("HEAL_DIR"), rank); };
  if (world.rank() == 0) {
    for (int r = 1; r < world.size(); ++r) wait_until([&] { return ::access(file(r).c_str(), F_OK) == 0; });
    return deaths.at("parting", 0);
  }
  if (setting("HEAL_PARTS") == "leaves") recovery.reset();
  std::ofstream(file(world.rank())) << "here";
  const auto job = lockstep::backends::HealableJob::current();
  wait_until([&] { return job->world_change().has_happened(); });
}

/// Operations whose results must be copied at their ends.
class Unwaited {
 public:
  void start(const lockstep::World& world) {
    for (int r = 0; r < 2 * world.size(); ++r) outputs_.push_back(at::full({5, 2}, -1.0).select(1, 0));
    const auto half = outputs_.begin() + world.size();
    world.all_gather_async({outputs_.begin(), half}, at::full({5}, 1.0 + world.rank()));
    const std::vector<at::Tensor> given(static_cast<size_t>(world.size()),
                                        at::full({5}, 20.0 + world.rank()));
    world.all_to_all_async({half, outputs_.end()}, given);
  }
  void check(const lockstep::World& world) const {
    for (int r = 0; r < static_cast<int>(outputs_.size()); ++r) {
      const double expected = r < world.size() ? 1.0 + r : 20.0 + r - world.size();
      if (!outputs_[static_cast<size_t>(r)].equal(at::full({5}, expected)))
        throw std::runtime_error("what nobody has waited for before Recovery is not there behind it");
    }
  }

 private:
  std::vector<at::Tensor> outputs_{};
};

std::jthread die_when_cleared(const Deaths& deaths) {
  const auto job = lockstep::backends::HealableJob::current();
  if (!job || setting("HEAL_KILLS").find(":cleared:") == std::string::npos) return {};
  return std::jthread([&record = job->record(), deaths](const std::stop_token& stop) {
    constexpr auto kCleared = static_cast<uint64_t>(lockstep::shm::WorldChange::Stage::cleared);
    while ((record.meeting.load() & 0xff) != kCleared) {
      if (stop.stop_requested()) return;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    deaths.at("cleared", 0);
  });
}

int count_threads() {
  const auto threads = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<int>(std::distance(begin(threads), end(threads)));
}

/// Rows that follow from their numbers alone.
at::Tensor rows(int64_t first) {
  return at::sin(at::arange(first * 8, (first + 4) * 8, at::TensorOptions(at::kFloat)).view({4, 8}) * 0.37);
}

int run(int argc, char** argv) {
  int64_t steps = 20;
  int64_t width = 32;
  int64_t models = 1;
  int logical = 0, recoveries = 1;
  std::string optimizer_name = "adam", norm, hook;
  bool is_plain = false, tells_times = false, has_subgroups = false, accumulates = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--steps") == 0) steps = std::stoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--width") == 0) width = std::stoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--plain") == 0) is_plain = std::strcmp(argv[i + 1], "yes") == 0;
    if (std::strcmp(argv[i], "--times") == 0) tells_times = std::strcmp(argv[i + 1], "yes") == 0;
    if (std::strcmp(argv[i], "--models") == 0) models = std::stoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--norm") == 0) norm = argv[i + 1];
    if (std::strcmp(argv[i], "--hook") == 0) hook = argv[i + 1];
    if (std::strcmp(argv[i], "--logical") == 0) logical = std::stoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--recoveries") == 0) recoveries = std::stoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--accumulate") == 0) accumulates = std::strcmp(argv[i + 1], "yes") == 0;
    if (std::strcmp(argv[i], "--subgroups") == 0) has_subgroups = std::strcmp(argv[i + 1], "yes") == 0;
    if (std::strcmp(argv[i], "--optimizer") == 0) optimizer_name = argv[i + 1];
  }
  lockstep::test::get_stuck();
  lockstep::test::refuse_to_replace();
  const bool lingers = setting("HEAL_LINGERS") == "yes" && !lockstep::test::has_first_death();
  const auto world = lockstep::init();
  const Deaths deaths(world.rank());
  at::manual_seed(7 + static_cast<uint64_t>(world.rank()));  // rank 0's weights count
  Net net(width, !norm.empty());
  lockstep::DistributedDataParallel ddp(
      net, {.bucket_cap_mb = hook.empty() ? 25 : 0.001, .broadcast_buffers = norm != "own"});
  std::shared_ptr<lockstep::PowerSGDState> compression;
  if (!hook.empty()) {
    compression = std::make_shared<lockstep::PowerSGDState>(
        std::nullopt, lockstep::PowerSGDOptions{.start_powerSGD_iter = 3, .min_compression_rate = 1});
    ddp.register_comm_hook(compression,
                           hook == "batched" ? lockstep::batched_powerSGD_hook : lockstep::powerSGD_hook);
  }
  std::optional<lockstep::LogicalRanks> logical_ranks;
  if (logical > 0) logical_ranks.emplace(ddp, lockstep::LogicalRanksOptions{.size = logical, .seed = 5});
  std::optional<lockstep::ProcessGroup> subgroup;
  for (int parity = 0; has_subgroups && parity < 2; ++parity) {
    std::vector<int> members;
    for (int rank = parity; rank < world.size(); rank += 2) members.push_back(rank);
    const auto made = world.new_group(members);
    if (world.rank() % 2 == parity) subgroup = made;
  }
  auto optimizer = make_optimizer(optimizer_name, net, ddp);
  lockstep::LRScheduler scheduler(*optimizer,
                                  {.type = lockstep::SchedulerType::linear, .num_training_steps = steps});
  Net critic{nullptr};
  std::unique_ptr<lockstep::DistributedDataParallel<Net>> critic_ddp;
  std::unique_ptr<lockstep::FusedSGD> critic_optimizer;
  if (models > 1) {
    critic = Net(16, false);
    critic_ddp = std::make_unique<lockstep::DistributedDataParallel<Net>>(critic);
    critic_optimizer = std::make_unique<lockstep::FusedSGD>(lockstep::parameters(critic),
                                                            torch::optim::SGDOptions(0.01).momentum(0.9));
  }
  lockstep::Counters counters;
  lockstep::ExponentialMovingAverage average(*net, 0.9);
  std::optional<lockstep::ProcessGroup> dropped;
  if (setting("HEAL_DROPS") == "yes") dropped = world.duplicate();
  Unwaited unwaited;
  if (setting("HEAL_UNWAITED") == "yes") unwaited.start(world);
  const at::Tensor message = at::ones({3});
  if (setting("HEAL_UNWAITED") == "message" && world.rank() == 0) world.irecv(message, world.size() - 1);
  const std::jthread dying = die_when_cleared(deaths);
  deaths.at("setup", 0);
  const auto healable = lockstep::backends::HealableJob::current();
  const bool is_new = healable && healable->is_replaying();
  if (is_new) deaths.at("again", 0);
  int64_t step = 0;
  std::vector<lockstep::Recovery::Item> items{
      {"model", *net}, {"optimizer", *optimizer}, {"counters", counters}, {"average", average}};
  if (models > 1) {
    items.emplace_back("critic", *critic);
    items.emplace_back("critic's optimizer", *critic_optimizer);
  }
  if (compression && setting("HEAL_FORGETS") != "compression") items.emplace_back("compression", compression);
  if (setting("HEAL_FORGETS") != "schedule") items.emplace_back("scheduler", scheduler);
  items.emplace_back(lockstep::detail::RecoveryItem{.name = "what was healed",
                                                    .save = [] { return lockstep::StateDict(); },
                                                    .load = [](const lockstep::StateDict& /*state*/) {},
                                                    .keep = [] {},
                                                    .restore = [] {},
                                                    .healed = [&] { deaths.at("healed", step); }});
  if (setting("HEAL_COMES_LATE") == "yes") {
    items.emplace_back(lockstep::detail::RecoveryItem{.name = "slow",
                                                      .save =
                                                          [&] {
                                                            if (world.rank() == 1)
                                                              lockstep::test::wait_for_first_death(1);
                                                            return lockstep::StateDict();
                                                          },
                                                      .load = [](const lockstep::StateDict& /*state*/) {},
                                                      .keep = [] {},
                                                      .restore = [] {},
                                                      .is_alike = false,
                                                      .is_own = true});
  }
  auto recovering =
      std::make_unique<lockstep::Recovery>(world, std::move(items), lockstep::RecoveryOptions{.seed = 3});
  lockstep::Recovery& recovery = *recovering;
  dropped.reset();
  unwaited.check(world);
  if (setting("HEAL_UNWAITED") == "message" && world.rank() == world.size() - 1) world.send(message, 0);
  std::optional<lockstep::Recovery> another;
  if (recoveries > 1) another.emplace(world, std::vector<lockstep::Recovery::Item>{{"model", *net}});
  if (recoveries == 2) another.reset();
  if (setting("HEAL_TELLS") == "outlives" && healable)
    std::printf("rank %d: outlives_machine %u\n", world.rank(), healable->record().outlives_machine.load());
  int64_t plain_steps = 0;
  std::vector<double> ends;
  const auto steps_done = [&] { return is_plain ? plain_steps : recovery.steps(); };
  net->in_forward = [&] { deaths.at("forward", step); };
  net->in_backward = [&] { deaths.at("backward", step); };
  while (steps_done() < steps) {
    step = steps_done();
    if (setting("HEAL_HOLDS") == "yes" && step == 2 && !is_new) {
      lockstep::test::wait_for_spare(/*counts_deaths=*/false);
      if (world.rank() == world.size() - 1) lockstep::test::wait_for_end();
    }
    deaths.at("outside", step);
    if (setting("HEAL_OUTSIDE") == "yes") world.barrier();  // what a program must not do
    deaths.at("between", step);
    const auto body = [&] {
      step = steps_done();
      deaths.in_step(step);
      deaths.at("data", step);
      if (logical_ranks) {
        logical_ranks->run_step(static_cast<uint64_t>(step), 2, [&](const lockstep::LogicalPass& pass) {
          const at::Tensor x = rows(counters["rows"] + (2 * pass.rank + pass.micro_batch) * 4);
          at::mse_loss(ddp(x), at::cos(x.narrow(1, 0, 4))).backward();
        });
        counters["rows"] += 8 * logical;
        deaths.at("before", step);
        optimizer->step();
        deaths.at("updated", step);
        average.update();
        deaths.at("after", step);
        return scheduler.step();
      }
      const at::Tensor x = rows(counters["rows"] + world.rank() * 4);
      counters["rows"] += 4 * world.size();
      optimizer->zero_grad();
      const at::Tensor wanted = at::cos(x.narrow(1, 0, 4)), found = ddp(x);
      if (accumulates) {
        const auto alone = ddp.no_sync();
        at::mse_loss(ddp(x * 0.5), wanted).backward();
      }
      at::Tensor weight = at::ones({});
      if (subgroup) {
        weight = found.detach().square().mean();
        subgroup->all_reduce(weight);
      }
      (at::mse_loss(found, wanted) * weight).backward();
      if (critic_ddp) {
        critic_optimizer->zero_grad();
        at::mse_loss((*critic_ddp)(x), (found.detach() - wanted)).backward();
      }
      if (setting("HEAL_SKIPS") == "yes" && step % 3 == 2) return lockstep::skip_step();
      deaths.at("before", step);
      optimizer->step();
      deaths.at("updated", step);
      if (critic_optimizer) critic_optimizer->step();
      average.update();
      deaths.at("after", step);
      if (setting("HEAL_LATE") == "yes") {
        deaths.at("late", step);
        world.barrier();
      }
      scheduler.step();
    };
    const auto evaluate = [&] {
      step = steps_done();
      deaths.at("evaluation", step);
      const at::NoGradGuard no_grad;
      net->eval();
      at::Tensor sum = net(rows(1000 + world.rank() * 4)).sum();
      net->train();
      world.all_reduce(sum);
      deaths.at("evaluated", step);
      counters["evaluations"] += sum.isfinite().item<bool>() ? 1 : 0;
    };
    if (is_plain) {
      lockstep::step(world, body, {.optimizers = {optimizer.get()}});
      ++plain_steps;
    } else {
      try {
        const bool is_evaluation = setting("HEAL_EVALUATES") == "yes" && step % 4 == 3;
        lockstep::step(recovery, is_evaluation ? std::function<void()>(evaluate) : body);
      } catch (const lockstep::StepFailedError&) {
        if (setting("HEAL_CATCHES") != "yes") throw;
      }
    }
    if (tells_times) ends.push_back(lockstep::monotonic_seconds());
    if (setting("HEAL_TELLS") == "threads" && steps_done() % 4 == 0)
      std::printf("rank %d after step %d: %d threads\n", world.rank(), static_cast<int>(steps_done()),
                  count_threads());
  }
  for (const double end : ends) std::printf("rank %d ended a step at %.6f\n", world.rank(), end);
  std::fflush(stdout);
  if (!setting("HEAL_PARTS").empty() && !is_new) part(world, deaths, recovering);
  const int64_t steps_in_all = steps_done();
  if (lingers && world.rank() == 0) lockstep::test::wait_for_end();
  recovering.reset();
  deaths.at("end", 0);
  uint64_t hash = static_cast<uint64_t>(counters["rows"] + counters["evaluations"]);
  for (const at::Tensor& parameter : net->parameters()) {
    hash = hash * 31 + lockstep::detail::hash_of_memory(parameter.const_data_ptr(), parameter.nbytes());
  }
  for (const auto& [name, tensor] : average.state_dict().tensors) {
    hash = hash * 31 + lockstep::detail::hash_of_memory(tensor.const_data_ptr(), tensor.nbytes());
  }
  for (const at::Tensor& parameter : critic ? critic->parameters() : std::vector<at::Tensor>())
    hash = hash * 31 + lockstep::detail::hash_of_memory(parameter.const_data_ptr(), parameter.nbytes());
  for (const at::Tensor& buffer : net->buffers())
    hash = hash * 31 + lockstep::detail::hash_of_memory(buffer.const_data_ptr(), buffer.nbytes());
  std::printf("rank %d of %d: steps %lld hash %016llx\n", world.rank(), world.size(),
              static_cast<long long>(steps_in_all), static_cast<unsigned long long>(hash));
  std::fflush(stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("healed_training", [&] { return run(argc, argv); });
}
