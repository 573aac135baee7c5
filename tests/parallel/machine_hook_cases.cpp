// Hooks and averagers that know machines, and bfloat16 between them. One machine is a case of its own.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "lockstep/comm/joining/machines.h"
#include "lockstep/parallel/hooks/post_local_sgd_hook.h"
#include "lockstep/parallel/model_averaging.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

std::vector<int> ranks_of_own_machine() {
  for (const std::vector<int>& ranks : ranks_by_machine(world().size())) {
    if (std::find(ranks.begin(), ranks.end(), world().rank()) != ranks.end()) return ranks;
  }
  return {};
}

double mean_of(const std::vector<int>& ranks) {
  return std::accumulate(ranks.begin(), ranks.end(), 0.0) / static_cast<double>(ranks.size());
}

std::vector<int> list_all() {
  std::vector<int> ranks(static_cast<size_t>(world().size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Its gradient is the rank's number everywhere.
struct CountingImpl : torch::nn::Module {
  CountingImpl() { weight = register_parameter("weight", at::zeros({70, 3})); }
  at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(); }
  at::Tensor weight;
};
TORCH_MODULE(Counting);

void check_all(const at::Tensor& tensor, double value) {
  CHECK_CLOSE(tensor, at::full(tensor.sizes(), value), 1e-6, 1e-6);
}

TEST(MachineHooks, PostLocalSgdAveragesOnEachMachine) {
  constexpr int kStart = 2;
  for (const bool stays_local : {false, true}) {
    Counting model;
    DistributedDataParallel ddp(model);
    const auto state = std::make_shared<PostLocalSGDState>(std::nullopt, std::nullopt, kStart, !stays_local);
    CHECK_TRUE(stays_local || state->subgroup->size() == static_cast<int>(ranks_of_own_machine().size()));
    ddp.register_comm_hook(state, post_localSGD_hook);
    for (int step = 0; step < 2 * kStart; ++step) {
      model->zero_grad();
      ddp(at::full({1}, static_cast<double>(world().rank()))).backward();
      const double late = stays_local ? world().rank() : mean_of(ranks_of_own_machine());
      check_all(model->weight.grad(), step < kStart ? mean_of(list_all()) : late);
    }
  }
}

TEST(MachineHooks, AveragesModelsOnEachMachineAndOverAll) {
  constexpr int kMachine = HierarchicalModelAverager::kMachine;
  HierarchicalModelAverager averager({{2, kMachine}, {6, world().size()}}, 2);
  for (int step = 0; step < 15; ++step) {
    const at::Tensor parameter = at::full({5}, world().rank() + 10.0 * step).requires_grad_();
    parameter.mutable_grad() = at::zeros({5});
    averager.average_parameters({parameter});
    double mean = world().rank();
    if (step >= 2 && step % 6 == 0) {
      mean = mean_of(list_all());
    } else if (step >= 2 && step % 2 == 0) {
      mean = mean_of(ranks_of_own_machine());
    }
    check_all(parameter.detach(), 10.0 * step + mean);
  }
  check_throws<ValueError>(
      [] {
        HierarchicalModelAverager({{2, world().size() + 1}, {3, world().size()}});
      },
      "kMachine takes the ranks of each machine");
  check_throws<ValueError>([&] { HierarchicalModelAverager({{2, kMachine}}); }, "the last group must be all");
}

/// A group may have other numbers than the job.
TEST(MachineHooks, AveragesModelsOfAGroupOnEachMachine) {
  ONLY_IF(world().size() > 2);
  std::vector<int> members = list_all();
  members.erase(members.begin());
  const ProcessGroup group = world().new_group(members);
  if (!group.is_member()) return;
  HierarchicalModelAverager averager({{1, HierarchicalModelAverager::kMachine}, {100, group.size()}}, 1,
                                     group);
  std::vector<int> here;
  for (const int rank : ranks_of_own_machine()) {
    if (rank != 0) here.push_back(rank);
  }
  for (int step = 0; step < 3; ++step) {
    const at::Tensor parameter = at::full({5}, static_cast<double>(world().rank())).requires_grad_();
    parameter.mutable_grad() = at::zeros({5});
    averager.average_parameters({parameter});
    check_all(parameter.detach(), step == 0 ? world().rank() : mean_of(here));
  }
}

/// The gradients of a training whose sums are rounded between machines stay close to the exact ones, and are the same on all
/// ranks, whatever the buckets are.
TEST(MachineHooks, RoundsGradientsBetweenMachines) {
  ONLY_IF(world().backend_name() == "lockstep");
  Toy exact;
  DistributedDataParallel exact_ddp(exact, {.wire_dtype = WireDtype::EXACT});
  for (const double cap : {25.0, 1e-4}) {
    Toy rounded;
    DistributedDataParallel rounded_ddp(rounded, {.bucket_cap_mb = cap, .wire_dtype = WireDtype::BFLOAT16});
    bool differs = false;
    for (int step = 0; step < 3; ++step) {
      for (auto* const ddp : {&exact_ddp, &rounded_ddp}) {
        (ddp == &exact_ddp ? exact : rounded)->zero_grad();
        at::mse_loss((*ddp)(batch_input(step, world().rank())), batch_target(step, world().rank()))
            .backward();
      }
      const auto expected = exact->parameters(), got = rounded->parameters();
      for (size_t p = 0; p < got.size(); ++p) {
        // Sums of a few gradients that cancel each other in part: their own size does not bound the error.
        const double largest = expected[p].grad().abs().max().item<double>();
        CHECK_CLOSE(got[p].grad(), expected[p].grad(), 0, 4.0 / 256 * largest);
        differs = differs || !got[p].grad().equal(expected[p].grad());
        for (const at::Tensor& theirs : world().all_gather(got[p].grad())) CHECK_EQUAL(theirs, got[p].grad());
      }
    }
    const bool has_several = ranks_of_own_machine().size() < static_cast<size_t>(world().size());
    CHECK_TRUE(differs == has_several);
  }
}

TEST(MachineHooks, RefusesToRoundOtherGradients) {
  Toy model;
  model->net2->to(at::kDouble);
  const char* const expected = world().backend_name() == "lockstep"
                                   ? "those of the parameter net2.weight are Double"
                                   : "needs the backend \"lockstep\"";
  check_throws<ValueError>([&] { DistributedDataParallel(model, {.wire_dtype = WireDtype::BFLOAT16}); },
                           expected);
}

}  // namespace
}  // namespace lockstep::testing
