// broadcast_optimizer_state: the source's state and nothing else, whatever the others had.
#include "lockstep/optim/optimizer_state.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize.h>

#include <sstream>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/parallel/sync_module_states.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// One weight under two names, and a layer that not every step uses.
struct SeldomImpl : torch::nn::Module {
  SeldomImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    again = register_parameter("again", first->weight);
    seldom = register_module("seldom", torch::nn::Linear(4, 4));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x, bool all) {
    const at::Tensor y = at::linear(first(x).tanh(), again);
    return all ? seldom(y) : y;
  }
  torch::nn::Linear first{nullptr}, seldom{nullptr};
  at::Tensor again;
};
TORCH_MODULE(Seldom);

void step(Seldom& net, torch::optim::Optimizer& optimizer, int number, bool all) {
  const auto loss = [&] {
    net->zero_grad();
    at::Tensor sum = net->forward(wave({5, 4}, number), all).square().sum();
    sum.backward();
    return sum;
  };
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    optimizer.step(loss);
  } else {
    loss();
    optimizer.step();
  }
}

/// What a rank has after a broadcast from `source`, compared with what the source had before, and some steps.
template <class Make>
void check_broadcast(const Make& make, int source, bool source_uses_all, bool source_steps, bool repeats) {
  Seldom net;
  const bool is_source = world().rank() == source;
  const auto list = repeats ? net->parameters() : parameters(net);
  auto optimizer = make(list, is_source ? 0.02 : 0.3);
  for (int s = 0; s < 3; ++s) {
    if (!is_source || source_steps)
      step(net, *optimizer, 10 * world().rank() + s, is_source == source_uses_all);
  }
  sync_module_states(*net, {.src = source});
  broadcast_optimizer_state(*optimizer, {.src = source});
  CHECK_TRUE(optimizer->param_groups()[0].params().size() == list.size() || repeats);
  CHECK_TRUE(optimizer->param_groups()[0].options().get_lr() == 0.02);
  const auto keys = world().all_gather_bytes(std::to_string(optimizer->state().size()));
  for (const std::string& size : keys) CHECK_TRUE(size == keys[0]);
  for (int s = 0; s < 3; ++s) step(net, *optimizer, 50 + s, true);
  for (const at::Tensor& parameter : parameters(net)) {
    for (const at::Tensor& theirs : world().all_gather(parameter.detach())) {
      CHECK_EQUAL(theirs, parameter);
    }
  }
}

template <class Optimizer, class Options>
void check_optimizer(const std::function<void(Options&)>& set) {
  const auto make = [&](std::vector<at::Tensor> list, double lr) {
    Options options(lr);
    set(options);
    return std::make_unique<Optimizer>(std::move(list), options);
  };
  for (const int source : {0, world().size() - 1}) {
    for (const bool source_uses_all : {false, true})
      check_broadcast(make, source, source_uses_all, true, false);
    check_broadcast(make, source, true, /*source_steps=*/false, false);
  }
  if constexpr (!std::is_same_v<Optimizer, torch::optim::LBFGS>) {
    check_broadcast(make, 0, false, true, /*repeats=*/true);
  }
}

TEST(BroadcastOptimizerState, ReplacesTheReceiversState) {
  using namespace torch::optim;
  check_optimizer<FusedAdamW, AdamWOptions>([](AdamWOptions&) {});
  check_optimizer<FusedAdamW, AdamWOptions>([](AdamWOptions& o) { o.amsgrad(true); });
  check_optimizer<AdamW, AdamWOptions>([](AdamWOptions& o) { o.weight_decay(0.2); });
  check_optimizer<Adam, AdamOptions>([](AdamOptions& o) { o.amsgrad(true); });
  check_optimizer<FusedSGD, SGDOptions>([](SGDOptions& o) { o.momentum(0.9); });
  check_optimizer<FusedSGD, SGDOptions>([](SGDOptions&) {});
  check_optimizer<SGD, SGDOptions>([](SGDOptions& o) { o.momentum(0.9).dampening(0.1); });
  check_optimizer<Adagrad, AdagradOptions>([](AdagradOptions&) {});
  check_optimizer<RMSprop, RMSpropOptions>([](RMSpropOptions& o) { o.momentum(0.5).centered(true); });
  check_optimizer<LBFGS, LBFGSOptions>([](LBFGSOptions& o) { o.max_iter(3); });
}

TEST(BroadcastOptimizerState, OptimizersThatDifferAreAnErrorOnAllRanks) {
  const Toy toy;
  const bool is_first = world().rank() == 0;
  FusedSGD fewer(is_first ? toy->parameters() : std::vector<at::Tensor>{toy->net1->weight}, 0.1);
  check_throws<Error>(
      [&] { broadcast_optimizer_state(fewer); },
      "broadcast_optimizer_state: the ranks' modules or options differ: rank 0 has group 0 of 4 "
      "parameters, rank 1 has group 0 of 1 parameters");
  FusedSGD other(std::vector<at::Tensor>{is_first ? toy->net1->weight : toy->net2->weight}, 0.1);
  check_throws<Error>([&] { broadcast_optimizer_state(other); },
                      "rank 1 has parameter 0 of group 0 [5, 10] Float");
  std::unique_ptr<torch::optim::Optimizer> kind = std::make_unique<FusedSGD>(toy->parameters(), 0.1);
  if (!is_first) kind = std::make_unique<FusedAdamW>(toy->parameters());
  check_throws<Error>([&] { broadcast_optimizer_state(*kind); },
                      "rank 0 has optimizer with torch::optim::SGDOptions");
  FusedSGD fine(toy->parameters(), 0.1);
  check_throws<ValueError>([&] { broadcast_optimizer_state(fine, {.src = 77}); }, "src");
  broadcast_optimizer_state(fine);  // the group is still in order
}

/// An optimizer whose state cannot be saved, or not be loaded.
struct Stubborn : torch::optim::SGD {
  using SGD::SGD;
  void save(torch::serialize::OutputArchive& archive) const override {
    if (!saves) throw std::runtime_error("the pen is dry");
    SGD::save(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    SGD::load(archive);
    if (!loads) throw std::runtime_error("the glasses are lost");
  }
  bool saves = true, loads = true;
};

TEST(BroadcastOptimizerState, ARankThatCannotIsNamedOnAllRanks) {
  const Toy toy;
  Stubborn optimizer(toy->parameters(), torch::optim::SGDOptions(0.1 + world().rank()).momentum(0.5));
  optimizer.saves = false;
  const int source = world().size() - 1;
  check_throws<Error>(
      [&] { broadcast_optimizer_state(optimizer, {.src = source}); },
      "rank " + std::to_string(source) + " cannot save its optimizer's state: the pen is dry");
  optimizer.saves = true;
  optimizer.loads = world().rank() != 1;
  check_throws<Error>([&] { broadcast_optimizer_state(optimizer); },
                      "rank 1 cannot load rank 0's state: the glasses are lost");
  // That rank has what it had before.
  if (world().rank() == 1) CHECK_TRUE(optimizer.param_groups()[0].options().get_lr() == 1.1);
}

/// LibTorch's load() loses the state of a tensor that is listed twice: no rank goes on with half a state.
TEST(BroadcastOptimizerState, AStateThatLoadHasLostIsAnErrorOnAllRanks) {
  const Toy toy;
  std::vector<at::Tensor> listed = toy->parameters();
  listed.push_back(listed.front());
  torch::optim::SGD trained(listed, torch::optim::SGDOptions(0.1).momentum(0.5));
  for (const at::Tensor& parameter : toy->parameters()) parameter.mutable_grad() = at::ones_like(parameter);
  trained.step();
  std::stringstream stream;
  torch::save(trained, stream);
  torch::optim::SGD fresh(listed, torch::optim::SGDOptions(0.1).momentum(0.5));
  torch::load(fresh, stream);
  check_throws<Error>([&] { broadcast_optimizer_state(fresh); }, "is lost");
  ZeroRedundancyOptimizer<torch::optim::SGD> zero(toy->parameters(),
                                                  torch::optim::SGDOptions(0.1).momentum(0.5));
  check_throws<ValueError>([&] { zero.load_state_dict(fresh); }, "is lost");
}

TEST(BroadcastOptimizerState, RefusesDividedOptimizers) {
  Toy toy;
  ZeroRedundancyOptimizer<FusedSGD> zero(toy->parameters(), torch::optim::SGDOptions(0.1));
  check_throws<ValueError>([&] { broadcast_optimizer_state(zero); }, "state is divided among the ranks");
  if (world().backend_name() != "lockstep") return;
  DistributedDataParallel ddp(toy);
  FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, torch::optim::SGDOptions(0.1));
  check_throws<ValueError>([&] { broadcast_optimizer_state(fused); }, "state is divided among the ranks");
}

}  // namespace
}  // namespace lockstep::testing
