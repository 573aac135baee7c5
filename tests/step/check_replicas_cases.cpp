// check_replicas(): drift of every kind, on each rank, is found and named; what may differ is left alone.
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/parallel/sync_module_states.h"
#include "lockstep/step/check_replicas.h"
#include "lockstep/step/compare_replicas.h"
#include "tests/ranks/rank_test.h"

namespace lockstep::testing {
namespace {

/// Parameters and buffers of many dtypes and shapes; each rank makes the same.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    at::manual_seed(5);
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    second = register_module("second", torch::nn::Linear(6, 3));
    tied = register_parameter("tied", first->weight);
    scale = register_parameter("scale", at::full({}, 1.5));
    frozen = register_parameter("frozen", at::ones({2, 3}), /*requires_grad=*/false);
    strided = register_parameter("strided", at::randn({5, 4}).t(), /*requires_grad=*/false);
    none = register_parameter("none", at::empty({0, 7}), /*requires_grad=*/false);
    waves = register_parameter("waves", at::complex(at::ones({3}), at::zeros({3})), /*requires_grad=*/false);
    halves = register_parameter("halves", at::ones({4}, at::kHalf), /*requires_grad=*/false);
    mask = register_buffer("mask", at::ones({3, 3}, at::kBool));
    positions = register_buffer("positions", at::arange(9));
  }
  at::Tensor forward(const at::Tensor& x) { return second(norm(first(x)).relu()) * scale; }

  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear second{nullptr};
  at::Tensor tied, scale, frozen, strided, none, waves, halves, mask, positions;
};
TORCH_MODULE(Mixed);

at::Tensor input(int step) {
  return (at::arange(20, at::kFloat) * 0.3 + 7 * step + world().rank()).sin().view({5, 4});
}

template <class Model>
void train(Model& ddp, torch::optim::Optimizer& optimizer, int steps = 2) {
  for (int step = 0; step < steps; ++step) {
    const auto loss = [&] {
      optimizer.zero_grad();
      at::Tensor result = ddp(input(step)).square().mean();
      result.backward();
      return result;
    };
    if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
      optimizer.step(loss);
    } else {
      loss();
      optimizer.step();
    }
  }
}

/// A model, its wrapper and an optimizer, after two steps.
struct Replica {
  Mixed model;
  DistributedDataParallel<Mixed> ddp{model, {.forward_sync_buffers = false}};
  torch::optim::Adam optimizer{lockstep::parameters(model), torch::optim::AdamOptions(0.1)};
  Replica() { train(ddp, optimizer); }
  torch::optim::AdamParamState& state(const at::Tensor& parameter) {
    return static_cast<torch::optim::AdamParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
  }
  torch::optim::AdamOptions& options() {
    return static_cast<torch::optim::AdamOptions&>(optimizer.param_groups()[0].options());
  }
};

struct Planted {
  std::string tensor;  // as the error must name it
  std::function<void(Replica&)> plant;
};

/// Flips the lowest bit of the last element.
void flip_bit(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor last = tensor.detach().reshape({-1}).narrow(0, tensor.numel() - 1, 1).clone();
  *static_cast<unsigned char*>(last.mutable_data_ptr()) ^= 1;
  at::Tensor place = tensor.detach();
  while (place.dim() > 0) place = place.select(0, place.size(0) - 1);
  place.copy_(last[0]);
}

void set_all(const at::Tensor& tensor, double value) {
  const at::NoGradGuard no_grad;
  tensor.detach().fill_(value);
}

void write_bits(const at::Tensor& tensor, uint32_t bits) {
  std::memcpy(tensor.detach().mutable_data_ptr(), &bits, sizeof(bits));
}

void verify_found(const std::function<void()>& check, const std::string& tensor, int culprit) {
  // Neither of two ranks is in the majority: the other one differs from rank 0.
  const int expected = world().size() == 2 ? 1 : culprit;
  try {
    check();
  } catch (const ReplicasDifferError& error) {
    EXPECT_EQ(error.tensor(), tensor) << error.what();
    EXPECT_EQ(error.ranks(), std::vector<int>{expected}) << error.what();
    EXPECT_NE(std::string(error.what()).find(tensor), std::string::npos) << error.what();
    return;
  }
  throw std::runtime_error("drift in " + tensor + " of rank " + std::to_string(culprit) + " was not found");
}

/// Plants it on one rank after the other.
void verify_each_rank(const Planted& planted, const std::function<void(Replica&)>& before = {}) {
  for (int culprit = 0; culprit < world().size(); ++culprit) {
    Replica replica;
    if (before) before(replica);
    check_replicas(replica.ddp, replica.optimizer);
    if (world().rank() == culprit) planted.plant(replica);
    verify_found([&] { check_replicas(replica.ddp, replica.optimizer); }, planted.tensor, culprit);
    verify_found([&] { check_replicas(*replica.model, replica.optimizer); }, planted.tensor, culprit);
  }
}

TEST(CheckReplicas, FindsOneBitInEachKindOfTensor) {
  const std::vector<Planted> all{
      {"parameter tied", [](Replica& r) { flip_bit(r.model->first->weight); }},  // once, under its first name
      {"parameter second.bias", [](Replica& r) { flip_bit(r.model->second->bias); }},
      {"parameter scale", [](Replica& r) { flip_bit(r.model->scale); }},
      {"parameter frozen", [](Replica& r) { flip_bit(r.model->frozen); }},
      {"parameter strided", [](Replica& r) { flip_bit(r.model->strided); }},
      {"parameter waves", [](Replica& r) { flip_bit(r.model->waves); }},
      {"parameter halves", [](Replica& r) { flip_bit(r.model->halves); }},
      {"buffer mask", [](Replica& r) { flip_bit(r.model->mask); }},
      {"buffer positions", [](Replica& r) { flip_bit(r.model->positions); }},
      {"optimizer state exp_avg of second.weight",
       [](Replica& r) { flip_bit(r.state(r.model->second->weight).exp_avg()); }},
      {"optimizer state exp_avg_sq of norm.bias",
       [](Replica& r) { flip_bit(r.state(r.model->norm->bias).exp_avg_sq()); }},
  };
  for (const Planted& planted : all) verify_each_rank(planted);
}

TEST(CheckReplicas, FindsNumbersAndOptions) {
  const std::vector<Planted> all{
      {"optimizer state step of first.bias", [](Replica& r) { r.state(r.model->first->bias).step(7); }},
      {"optimizer option lr of parameter group 0", [](Replica& r) { r.options().lr(0.1 + 1e-15); }},
      {"optimizer option betas.1 of parameter group 0",
       [](Replica& r) {
         r.options().betas({0.9, 0.99});
       }},
      {"optimizer option amsgrad of parameter group 0", [](Replica& r) { r.options().amsgrad(true); }},
      {"optimizer option weight_decay of parameter group 0",
       [](Replica& r) { r.options().weight_decay(0.1); }},
  };
  for (const Planted& planted : all) verify_each_rank(planted);
}

TEST(CheckReplicas, FindsWhatIsNotThereOrOfAnotherKind) {
  const std::vector<Planted> all{
      {"optimizer state max_exp_avg_sq of scale",
       [](Replica& r) { r.state(r.model->scale).max_exp_avg_sq(at::ones({})); }},
      {"optimizer state exp_avg of second.bias",
       [](Replica& r) { r.state(r.model->second->bias).exp_avg(at::zeros({4})); }},
      {"parameter frozen", [](Replica& r) { r.model->frozen.set_data(r.model->frozen.to(at::kDouble)); }},
      {"parameter frozen",
       [](Replica& r) {
         r.model->frozen.set_data(r.model->frozen.detach().view({3, 2}));
       }},
      {"parameter frozen", [](Replica& r) { r.model->frozen.set_requires_grad(true); }},
      {"parameter none",
       [](Replica& r) {
         r.model->none.set_data(at::empty({7, 0}));
       }},
      {"buffer extra", [](Replica& r) { r.model->register_buffer("extra", at::ones({2})); }},
      {"buffer norm.running_mean",  // of statistics dtype and shape alone are compared
       [](Replica& r) { r.model->norm->running_mean.set_data(at::zeros({6}, at::kDouble)); }},
  };
  for (const Planted& planted : all) verify_each_rank(planted);
  // All of the state of one parameter.
  verify_each_rank({"optimizer state step of norm.weight", [](Replica& r) {
                      r.optimizer.state().erase(r.model->norm->weight.unsafeGetTensorImpl());
                    }});
}

TEST(CheckReplicas, BitsCountAsTheyAreWritten) {
  const auto zeros = [](Replica& r) { set_all(r.model->frozen, 0); };
  verify_each_rank({"parameter frozen", [](Replica& r) { set_all(r.model->frozen, -0.0); }}, zeros);
  const auto nans = [](Replica& r) { set_all(r.model->frozen, std::numeric_limits<double>::quiet_NaN()); };
  verify_each_rank({"parameter frozen", [](Replica& r) { write_bits(r.model->frozen, 0x7fc00001); }}, nans);
}

TEST(CheckReplicas, SaysWhereAndHowAndWhatToDo) {
  Replica replica;
  if (world().rank() == world().size() - 1) {
    const at::NoGradGuard no_grad;
    replica.model->frozen[1][2] = 3.25;
    replica.state(replica.model->scale).exp_avg().fill_(17);
  }
  const auto check = [&] { check_replicas(replica.ddp, replica.optimizer, {.place = "after epoch 2"}); };
  const std::string last = std::to_string(world().size() - 1);
  check_throws<ReplicasDifferError>(
      check,
      "the ranks' replicas differ after epoch 2: parameter frozen of rank " + last + " differs from rank 0");
  check_throws<ReplicasDifferError>(
      check, "the first different element [1, 2] is 3.25 on rank " + last + " and 1 on rank 0. In all 2 of ");
  check_throws<ReplicasDifferError>(check, "sync_module_states() and broadcast_optimizer_state()");
  sync_module_states(*replica.model);
  check_throws<ReplicasDifferError>(check, "optimizer state exp_avg of scale of rank " + last);
  check_throws<ReplicasDifferError>(check, "the first different value is 17 on rank " + last);
  broadcast_optimizer_state(replica.optimizer);
  check();
  train(replica.ddp, replica.optimizer, 1);
  check();
}

TEST(CheckReplicas, BitsAreShownOfValuesThatPrintTheSame) {
  Replica replica;
  set_all(replica.model->frozen, std::numeric_limits<double>::quiet_NaN());
  write_bits(replica.model->frozen, world().rank() == 1 ? 0x7fc00001 : 0x7fc00000);
  check_throws<ReplicasDifferError>(
      [&] { check_replicas(replica.ddp); },
      "element [0, 0] is nan (0x7fc00001) on rank 1 and nan (0x7fc00000) on rank 0");
}

// Where all ranks differ from each other, they are compared with rank 0.
TEST(CheckReplicas, WithoutAMajorityRankZeroIsTheReference) {
  Replica replica;
  set_all(replica.model->frozen, world().rank());
  try {
    check_replicas(replica.ddp);
    FAIL() << "no error";
  } catch (const ReplicasDifferError& error) {
    EXPECT_EQ(error.ranks(), world().size() == 2 ? std::vector<int>{1} : (std::vector<int>{1, 2}));
  }
}

TEST(CheckReplicas, WhatIsEachRanksOwnIsLeftAlone) {
  Mixed model;
  DistributedDataParallel<Mixed> ddp(model,
                                     {.parameters_and_buffers_to_ignore = {"frozen", "mask", "scale"}});
  torch::optim::SGD optimizer(lockstep::parameters(model), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(ddp, optimizer);  // running statistics and, of `scale`, gradient and momentum are this rank's own
  set_all(model->frozen, world().rank() == 1 ? 2 : 3);
  check_replicas(ddp, optimizer);
  // Strides are no difference.
  if (world().rank() == 1) model->strided.set_data(model->strided.detach().contiguous());
  check_replicas(ddp, optimizer);
  // The module does not have the wrapper's list.
  verify_found([&] { check_replicas(*model, optimizer, {.parameters_and_buffers_to_ignore = {"scale"}}); },
               "parameter frozen", 1);
  check_replicas(*model, optimizer, {.parameters_and_buffers_to_ignore = {"scale", "frozen", "mask"}});
  // A buffer that differs, where its module writes what it sees.
  model->positions.add_(world().rank());
  check_throws<ReplicasDifferError>([&] { check_replicas(ddp, optimizer); }, "buffer positions");
  check_replicas(ddp, optimizer, {.compare_buffers = false});
  model->strided.set_data(model->strided.detach().contiguous());  // another wrapper wants one layout
  // So all buffers are of a wrapper that leaves them to each rank.
  torch::optim::SGD none(std::vector<at::Tensor>{model->second->bias}, 0.1);
  DistributedDataParallel<Mixed> own(
      model, {.broadcast_buffers = false, .parameters_and_buffers_to_ignore = {"frozen", "mask", "scale"}});
  check_replicas(own, none);
  check_throws<ReplicasDifferError>([&] { check_replicas(own, none, {.compare_buffers = true}); },
                                    "buffer positions");
}

TEST(CheckReplicas, StatisticsOfSyncBatchNormAreCompared) {
  struct NetImpl : torch::nn::Module {
    BatchNorm norm = register_module("norm", BatchNorm(4));
    at::Tensor forward(const at::Tensor& x) { return norm(x); }
  };
  const auto net = std::make_shared<NetImpl>();
  convert_sync_batchnorm(*net);
  DistributedDataParallel ddp(net, {.forward_sync_buffers = false});
  torch::optim::SGD optimizer(lockstep::parameters(net), 0.1);
  train(ddp, optimizer);
  check_replicas(ddp, optimizer);
  if (world().rank() == 1) flip_bit(net->norm->running_var);
  verify_found([&] { check_replicas(ddp, optimizer); }, "buffer norm.running_var", 1);
  net->norm->set_process_group(std::nullopt);
  check_replicas(ddp, optimizer);
}

/// Every optimizer: equal replicas pass, and a drift in the state that `find` gives is found.
template <class Optimizer>
void verify_optimizer(const auto& make, const std::string& tensor,
                      const std::function<void(Optimizer&, const Mixed&)>& plant) {
  Mixed model;
  DistributedDataParallel<Mixed> ddp(model, {.forward_sync_buffers = false});
  Optimizer optimizer = make(ddp, model);
  train(ddp, optimizer, 3);
  check_replicas(ddp, optimizer);
  if (world().rank() == 1) plant(optimizer, model);
  verify_found([&] { check_replicas(ddp, optimizer); }, tensor, 1);
}

template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  return static_cast<State&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

TEST(CheckReplicas, KnowsEveryOptimizer) {
  using namespace torch::optim;
  const auto over = [](auto options) {
    return [options](auto&, const Mixed& model) { return std::pair(lockstep::parameters(model), options); };
  };
  const auto verify = [&]<class Optimizer, class State>(auto options, const std::string& name,
                                                        const std::function<at::Tensor(State&)>& of) {
    const auto parameters_and_options = over(options);
    verify_optimizer<Optimizer>(
        [&](auto& ddp, const Mixed& model) {
          const auto made = parameters_and_options(ddp, model);
          return Optimizer(made.first, made.second);
        },
        "optimizer state " + name + " of second.weight",
        [&](Optimizer& optimizer, const Mixed& model) {
          flip_bit(of(state_of<State>(optimizer, model->second->weight)));
        });
  };
  verify.template operator()<SGD, SGDParamState>(SGDOptions(0.1).momentum(0.9), "momentum_buffer",
                                                 [](SGDParamState& s) { return s.momentum_buffer(); });
  verify.template operator()<FusedSGD, SGDParamState>(SGDOptions(0.1).momentum(0.9), "momentum_buffer",
                                                      [](SGDParamState& s) { return s.momentum_buffer(); });
  verify.template operator()<AdamW, AdamWParamState>(AdamWOptions(0.1).amsgrad(true), "max_exp_avg_sq",
                                                     [](AdamWParamState& s) { return s.max_exp_avg_sq(); });
  verify.template operator()<FusedAdamW, AdamWParamState>(AdamWOptions(0.1), "exp_avg",
                                                          [](AdamWParamState& s) { return s.exp_avg(); });
  verify.template operator()<Adagrad, AdagradParamState>(AdagradOptions(0.1), "sum",
                                                         [](AdagradParamState& s) { return s.sum(); });
  verify.template operator()<RMSprop, RMSpropParamState>(RMSpropOptions(0.1).centered(true), "grad_avg",
                                                         [](RMSpropParamState& s) { return s.grad_avg(); });
}

TEST(CheckReplicas, KnowsLbfgs) {
  const auto make = [](auto&, const Mixed& model) {
    std::vector<at::Tensor> trained;
    for (const at::Tensor& parameter : lockstep::parameters(model))
      if (parameter.requires_grad()) trained.push_back(parameter);
    // One pass a step: each rank would look at its own loss otherwise.
    return torch::optim::LBFGS(trained, torch::optim::LBFGSOptions(0.1).max_iter(1));
  };
  const auto state = [](torch::optim::LBFGS& optimizer) -> torch::optim::LBFGSParamState& {
    return static_cast<torch::optim::LBFGSParamState&>(*optimizer.state().begin()->second);
  };
  verify_optimizer<torch::optim::LBFGS>(
      make, "optimizer state d of tied",
      [&](auto& optimizer, const Mixed&) { flip_bit(state(optimizer).d()); });
  verify_optimizer<torch::optim::LBFGS>(
      make, "optimizer state old_dirs.0 of tied",
      [&](auto& optimizer, const Mixed&) { flip_bit(state(optimizer).old_dirs().front()); });
  verify_optimizer<torch::optim::LBFGS>(make, "optimizer state n_iter of tied",
                                        [&](auto& optimizer, const Mixed&) { state(optimizer).n_iter(9); });
}

// The state of divided optimizers is each rank's own; the parameters and the options are not.
TEST(CheckReplicas, OfDividedOptimizersParametersAndOptionsAreCompared) {
  const auto make = [](auto&, const Mixed& model) {
    return ZeroRedundancyOptimizer<FusedAdamW>(lockstep::parameters(model), torch::optim::AdamWOptions(0.1));
  };
  verify_optimizer<ZeroRedundancyOptimizer<FusedAdamW>>(
      make, "optimizer option lr of parameter group 0",
      [](auto& optimizer, const Mixed&) { optimizer.set_lr(0.2); });
  verify_optimizer<ZeroRedundancyOptimizer<FusedAdamW>>(
      make, "parameter second.weight", [](auto&, const Mixed& model) { flip_bit(model->second->weight); });
}

TEST(CheckReplicas, OfTheFusedDividedOptimizerToo) {
  ONLY_IF(world().backend_name() == "lockstep");
  torch::nn::Linear model(4, 3);
  DistributedDataParallel ddp(model);
  FusedZeroRedundancyOptimizer<FusedAdamW> optimizer(ddp, torch::optim::AdamWOptions(0.1));
  train(ddp, optimizer);
  check_replicas(ddp, optimizer);
  if (world().rank() == 1) flip_bit(model->bias);
  verify_found([&] { check_replicas(ddp, optimizer); }, "parameter bias", 1);
}

TEST(CheckReplicas, SeveralOptimizersAreToldApart) {
  Mixed model;
  DistributedDataParallel<Mixed> ddp(model, {.forward_sync_buffers = false});
  torch::optim::SGD one(std::vector<at::Tensor>{model->first->weight, model->norm->weight, model->norm->bias},
                        torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::Adam two(std::vector<at::Tensor>{model->second->weight, model->scale},
                         torch::optim::AdamOptions(0.1));
  train(ddp, one);
  train(ddp, two);
  check_replicas(ddp, {&one, &two});
  if (world().rank() == 1) {
    flip_bit(state_of<torch::optim::AdamParamState>(two, model->scale).exp_avg());
  }
  check_replicas(ddp, one);
  check_replicas(ddp);
  verify_found(
      [&] {
        check_replicas(ddp, {&one, &two});
      },
      "optimizer state exp_avg of scale of optimizer 2", 1);
  verify_found(
      [&] {
        check_replicas(*model, {&one, &two});
      },
      "optimizer state exp_avg of scale of optimizer 2", 1);
}

// --- classes of users' own

struct OwnOptions : torch::optim::OptimizerCloneableOptions<OwnOptions> {
  double rate = 0.5;
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("rate", c10::IValue(rate));
  }
};

struct OwnState : torch::optim::OptimizerCloneableParamState<OwnState> {
  at::Tensor sum = at::zeros({3});
  int64_t calls = 0;
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("calls", c10::IValue(calls));
    archive.write("sum", sum, /*is_buffer=*/true);
  }
};

template <class Options, class State>
struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(const at::Tensor& parameter)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup(
                      std::vector<at::Tensor>{parameter})},
                  std::make_unique<Options>()) {
    state_[parameter.unsafeGetTensorImpl()] = std::make_unique<State>();
  }
  torch::Tensor step(LossClosure) override { return {}; }
};

TEST(CheckReplicas, OwnClassesAreComparedByWhatTheyWrite) {
  torch::nn::Linear model(3, 1);
  sync_module_states(*model);
  OwnOptimizer<OwnOptions, OwnState> optimizer(model->weight);
  auto& state = state_of<OwnState>(optimizer, model->weight);
  auto& options = static_cast<OwnOptions&>(optimizer.param_groups()[0].options());
  check_replicas(*model, optimizer);
  const bool is_culprit = world().rank() == 1;
  if (is_culprit) flip_bit(state.sum);
  verify_found([&] { check_replicas(*model, optimizer); }, "optimizer state sum of weight", 1);
  if (is_culprit) flip_bit(state.sum);
  if (is_culprit) state.calls = 3;
  verify_found([&] { check_replicas(*model, optimizer); }, "optimizer state calls of weight", 1);
  if (is_culprit) state.calls = 0;
  if (is_culprit) options.rate = 0.25;
  verify_found([&] { check_replicas(*model, optimizer); }, "optimizer option rate of parameter group 0", 1);
}

TEST(CheckReplicas, OwnClassesThatWriteNothingAreRefusedOnAllRanks) {
  struct Silent : torch::optim::OptimizerCloneableParamState<Silent> {};
  torch::nn::Linear model(3, 1);
  sync_module_states(*model);
  OwnOptimizer<OwnOptions, Silent> silent(model->weight);
  check_throws<ValueError>([&] { check_replicas(*model, silent); }, "its serialize(OutputArchive&) throws");
  // On one rank alone: the others say so too.
  torch::optim::SGD plain(std::vector<at::Tensor>{model->weight}, 0.1);
  torch::optim::Optimizer& either =
      world().rank() == 1 ? static_cast<torch::optim::Optimizer&>(silent) : plain;
  check_throws<ValueError>([&] { check_replicas(*model, either); },
                           "check_replicas: rank 1 cannot list what it has: ");
  check_replicas(*model, plain);
}

TEST(CheckReplicas, ANameToIgnoreThatDoesNotExistIsRefused) {
  torch::nn::Linear model(3, 1);
  const auto check = [&] { check_replicas(*model, {}, {.parameters_and_buffers_to_ignore = {"wieght"}}); };
  check_throws<ValueError>(check, "names \"wieght\", but the module has no parameter or buffer of that name");
}

TEST(CheckReplicas, SparseStateIsComparedAsItsEntries) {
  torch::nn::Linear model(3, 1);
  sync_module_states(*model);
  OwnOptimizer<OwnOptions, torch::optim::SGDParamState> optimizer(model->weight);
  auto& state = state_of<torch::optim::SGDParamState>(optimizer, model->weight);
  const auto sparse = [](int64_t place, double value) {
    return at::sparse_coo_tensor(at::full({1, 1}, place), at::full({1}, value), {4});
  };
  state.momentum_buffer(sparse(2, 1));
  check_replicas(*model, optimizer);
  if (world().rank() == 1) state.momentum_buffer(sparse(3, 1));
  verify_found([&] { check_replicas(*model, optimizer); },
               "optimizer state momentum_buffer of weight (indices)", 1);
  if (world().rank() == 1) state.momentum_buffer(sparse(2, 2));
  verify_found([&] { check_replicas(*model, optimizer); },
               "optimizer state momentum_buffer of weight (values)", 1);
}

TEST(CheckReplicas, MixedPrecisionIsComparedInFullPrecision) {
  torch::nn::Linear model(4, 3);
  DistributedDataParallel ddp(model, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
  torch::optim::SGD optimizer(lockstep::parameters(model), torch::optim::SGDOptions(0.1).momentum(0.9));
  train(ddp, optimizer);
  check_replicas(ddp, optimizer);
  if (world().rank() == 1) flip_bit(model->weight);  // bfloat16 has no such bit
  verify_found([&] { check_replicas(ddp, optimizer); }, "parameter weight", 1);
}

TEST(CheckReplicas, ComparesTheRanksOfTheGroup) {
  const ProcessGroup alone = world().new_subgroups(1);
  torch::nn::Linear model(4, 3);
  set_all(model->weight, world().rank());
  check_replicas(*model, {}, {.process_group = alone});
  DistributedDataParallel ddp(model, {.process_group = alone});
  check_replicas(ddp);
  check_throws<ReplicasDifferError>([&] { check_replicas(ddp, {}, {.process_group = world()}); },
                                    "parameter weight");
}

// --- spread over steps

/// Five parameters of 1 MiB: five parts.
struct ManyImpl : torch::nn::Module {
  ManyImpl() {
    for (int p = 0; p < 5; ++p)
      register_parameter("p" + std::to_string(p), at::full({1 << 18}, p), /*requires_grad=*/false);
  }
};

detail::ListItems lister(const torch::nn::Module& module) {
  return [&module] {
    detail::ReplicaItems items;
    items.add_module(module, {}, true);
    return items;
  };
}

TEST(SpreadComparison, FindsDriftAtTheNextEndOfItsSteps) {
  for (int64_t planted_at = 1; planted_at <= 10; ++planted_at) {
    for (int which = 0; which < 5; ++which) {
      ManyImpl model;
      detail::SpreadComparison comparison(world(), lister(model), 5);
      const std::string name = "p" + std::to_string(which);
      int64_t found_at = 0;
      for (int64_t step = 1; step <= 15 && found_at == 0; ++step) {
        if (step == planted_at && world().rank() == 1) flip_bit(model.named_parameters()[name]);
        try {
          comparison.after_step(step);
        } catch (const ReplicasDifferError& error) {
          EXPECT_EQ(error.tensor(), "parameter " + name);
          EXPECT_EQ(step % 5, 0) << "the ranks exchange nothing between";
          found_at = step;
        }
      }
      // In the window of the step, or in the next one if the tensor had been hashed before.
      const int64_t end = (planted_at + 4) / 5 * 5;
      EXPECT_TRUE(found_at == end || found_at == end + 5)
          << "planted at " << planted_at << ", found at " << found_at;
      if (planted_at % 5 == 1) EXPECT_EQ(found_at, end);
    }
  }
}

TEST(SpreadComparison, AResumedRunComparesAllInItsFirstWindow) {
  for (const int64_t first : {1, 3, 4, 5}) {
    for (int which = 0; which < 5; ++which) {
      ManyImpl model;
      if (world().rank() == 1) flip_bit(model.named_parameters()["p" + std::to_string(which)]);
      detail::SpreadComparison comparison(world(), lister(model), 5);
      for (int64_t step = first; step < 5; ++step) comparison.after_step(step);
      verify_found([&] { comparison.after_step(5); }, "parameter p" + std::to_string(which), 1);
    }
  }
}

TEST(SpreadComparison, SaysSoIfTheReplicasAreTheSameAgain) {
  ManyImpl model;
  detail::SpreadComparison comparison(world(), lister(model), 5);
  const at::Tensor first = model.named_parameters()["p0"];
  if (world().rank() == 1) flip_bit(first);
  comparison.after_step(1);
  if (world().rank() == 1) flip_bit(first);
  for (int64_t step = 2; step < 5; ++step) comparison.after_step(step);
  check_throws<ReplicasDifferError>(
      [&] { comparison.after_step(5); },
      "differ at some time in the 5 steps up to step 5, although not any more: parameter p0 of rank 1");
}

TEST(SpreadComparison, FollowsStateThatComesLater) {
  torch::nn::Linear model(40, 30);
  DistributedDataParallel ddp(model);
  torch::optim::Adam optimizer(lockstep::parameters(model), torch::optim::AdamOptions(0.1));
  const detail::ListItems list = [&] {
    detail::ReplicaItems items;
    items.add_module(*model, {}, true);
    items.add_optimizer(optimizer);
    return items;
  };
  detail::SpreadComparison comparison(world(), list, 3);
  for (int64_t step = 1; step <= 6; ++step) {
    if (step == 5 && world().rank() == 1) {
      flip_bit(state_of<torch::optim::AdamParamState>(optimizer, model->bias).exp_avg());
    }
    if (step == 2) {
      ddp(at::ones({2, 40})).sum().backward();
      optimizer.step();
    }
    if (step == 6) {
      verify_found([&] { comparison.after_step(6); }, "optimizer state exp_avg of bias", 1);
    } else {
      comparison.after_step(step);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
