// Tied weights in what ranks share: the wrapper, divided optimizers, the states that all get.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/serialize.h>

#include <sstream>

#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/model_averaging.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/parallel/sync_module_states.h"
#include "tests/optim/tied_net.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDOptions;

TiedNet make_net() {
  TiedNet net;
  fill_with_waves(*net);
  return net;
}

at::Tensor tokens(int step) {
  return (at::arange(12, at::kLong) * (step + 3) + 5 * world().rank()).remainder(11);
}

template <class Ddp>
void train(Ddp& ddp, torch::optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    at::cross_entropy_loss(ddp(tokens(step)), tokens(step + 1)).backward();
    optimizer.step();
  }
}

void check_same_weights(const TiedNet& a, const TiedNet& b) {
  const auto of_a = parameters(a), of_b = parameters(b);
  for (size_t p = 0; p < of_a.size(); ++p) CHECK_EQUAL(of_a[p], of_b[p]);
}

/// The divided optimizer over LibTorch's list beside the whole one over ours, to the bit; its state goes to a
/// plain optimizer over either list, and comes back from it.
template <class OptimizerT, class Plain, class Options>
void check_divided(const Options& options, bool view) {
  TiedNet net = make_net(), whole_net = make_net();
  DistributedDataParallel ddp(net), whole_ddp(whole_net);
  CHECK_TRUE(ddp.parameters().size() == 4);
  CHECK_TRUE(net->parameters().size() == 5);
  ZeroRedundancyOptimizer<OptimizerT> zero(net->parameters(), options, {.parameters_as_bucket_view = view});
  OptimizerT whole(parameters(whole_ddp), options);
  train(ddp, zero, 0, 3);
  train(whole_ddp, whole, 0, 3);
  check_same_weights(net, whole_net);

  for (int rank = 0; rank < world().size(); ++rank) zero.consolidate_state_dict(rank);
  const StateDict expected = optimizer_state_dict(whole), found = optimizer_state_dict(zero.state_dict());
  CHECK_TRUE(expected.scalars == found.scalars);
  CHECK_TRUE(expected.tensors.size() == found.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) CHECK_EQUAL(tensor, found.tensors.at(name));

  for (const bool repeats : {false, true}) {
    TiedNet next = make_net();
    DistributedDataParallel next_ddp(next);
    Plain plain(repeats ? next->parameters() : parameters(next), options);
    load_optimizer_state_dict(plain, {expected});
    std::stringstream file;
    torch::save(plain, file);
    ZeroRedundancyOptimizer<OptimizerT> by_value(next->parameters(), options),
        by_file(parameters(next), options), by_parts(next->parameters(), options);
    by_value.load_state_dict(plain);
    torch::load(by_file, file);
    load_optimizer_state_dict(by_parts, {expected});
    for (auto* loaded : {&by_value, &by_file, &by_parts}) {
      const StateDict part = optimizer_state_dict(*loaded), own = optimizer_state_dict(zero);
      CHECK_TRUE(part.scalars == own.scalars);
      CHECK_TRUE(part.tensors.size() == own.tensors.size());
      for (const auto& [name, tensor] : own.tensors) CHECK_EQUAL(tensor, part.tensors.at(name));
    }
  }
}

TEST(TiedWeights, AreOneParameterOfADividedOptimizer) {
  for (const bool view : {false, true}) {
    check_divided<FusedAdamW, torch::optim::AdamW>(AdamWOptions(0.05), view);
    check_divided<FusedSGD, torch::optim::SGD>(SGDOptions(0.05).momentum(0.9), view);
    check_divided<torch::optim::AdamW, FusedAdamW>(AdamWOptions(0.05), view);
  }
}

TEST(TiedWeights, InTwoGroupsOfADividedOptimizerAreAnError) {
  TiedNet net = make_net();
  const OptimizerParamGroup first(
      std::vector<at::Tensor>{net->embedding->weight, net->hidden->weight, net->hidden->bias}),
      second(std::vector<at::Tensor>{net->decoder->bias, net->decoder->weight});
  check_throws<ValueError>(
      [&] {
        ZeroRedundancyOptimizer<FusedSGD>({first, second}, SGDOptions(0.1));
      },
      "ZeroRedundancyOptimizer: some parameters appear in more than one parameter group: parameter 1 of group 1 "
      "(Float [11, 6]) is parameter 0 of group 0 too");
  DistributedDataParallel ddp(net);
  check_throws<ValueError>(
      [&] {
        FusedZeroRedundancyOptimizer<FusedSGD>(ddp, {first, second}, SGDOptions(0.1));
      },
      "parameter 1 of group 1 (embedding.weight, Float [11, 6]) is parameter 0 of group 0 too");
}

TEST(TiedWeights, AreTheSameOnAllRanksOrAnError) {
  const bool is_tied = world().rank() == 0;
  torch::nn::Linear first(3, 3), own(3, 3);
  const torch::nn::Sequential net(first, is_tied ? first : own);
  check_throws<Error>([&] { sync_module_states(*net); },
                      "rank 0 has nothing more, rank 1 has parameter 1.weight [3, 3] Float");
}

TEST(TiedWeights, AreAveragedWithTheModel) {
  TiedNet net = make_net();
  for (const at::Tensor& parameter : parameters(net)) parameter.mutable_grad() = at::zeros_like(parameter);
  {
    const at::NoGradGuard no_grad;
    net->embedding->weight.fill_(world().rank());
  }
  PeriodicModelAverager averager(1);
  averager.average_parameters(net->parameters());
  CHECK_EACH(net->decoder->weight, (world().size() - 1) / 2.0);
}

base::Mutex lines_mutex;
std::vector<std::string> lines LOCKSTEP_GUARDED_BY(lines_mutex);

TEST(TiedWeights, AreNamedByTheWrapperAtLogLevelInfo) {
  for (const bool is_on : {true, false}) {
    {
      const base::LockGuard lock(lines_mutex);
      lines.clear();
    }
    log::set_level(is_on ? log::Level::info : log::Level::warning);
    log::set_line_writer([](std::string_view line) {
      const base::LockGuard lock(lines_mutex);
      lines.emplace_back(line);
    });
    {
      TiedNet net = make_net();
      DistributedDataParallel ddp(net);
      DistributedDataParallel ignoring(net, {.parameters_and_buffers_to_ignore = {"decoder.weight"}});
      Toy toy;
      DistributedDataParallel without(toy);
    }
    log::set_line_writer(nullptr);
    log::set_level(log::Level::warning);
    size_t found = 0;
    const base::LockGuard lock(lines_mutex);
    for (const std::string& line : lines) {
      if (line.find(
              "embedding.weight and decoder.weight are one tensor (tied). LibTorch's parameters() lists it 2 "
              "times, and the optimizers of torch::optim step it 2 times") != std::string::npos) {
        ++found;
      }
    }
    CHECK_TRUE(found == (is_on && world().rank() == 0 ? 1 : 0));
  }
}

}  // namespace
}  // namespace lockstep::testing
