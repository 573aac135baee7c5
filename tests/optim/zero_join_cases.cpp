// Optimizers that divide their work among the ranks, under join().
#include <ATen/ops/equal.h>
#include <torch/optim/adam.h>

#include "lockstep/optim/adamw.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/optim/zero_redundancy_optimizer.h"
#include "lockstep/parallel/join.h"
#include "tests/optim/zero_cases.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamWOptions;
using ToyDdp = DistributedDataParallel<Toy>;

int batches_of(int rank) { return 2 + 2 * rank; }
double rate_of(int step) { return 0.05 / (step + 1); }
constexpr double kNorm = 0.05;

/// What all ranks' batches make of the model on one rank, and of the optimizer's first state.
struct Expected {
  std::vector<at::Tensor> parameters, states;
};

Expected expected_of(bool clips) {
  Toy alone;
  FusedAdamW optimizer(alone->parameters(), AdamWOptions(0.05).weight_decay(0.1));
  for (int step = 0; step < batches_of(world().size() - 1); ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < world().size(); ++rank) {
      if (step < batches_of(rank)) toy_loss(alone, step, rank).backward();
    }
    for (at::Tensor& parameter : alone->parameters()) parameter.mutable_grad().div_(world().size());
    if (clips) clip_grad_norm_(alone->parameters(), kNorm);
    set_lr(optimizer, rate_of(step));
    optimizer.step();
  }
  Expected expected;
  for (const at::Tensor& parameter : alone->parameters()) {
    expected.parameters.push_back(parameter.detach());
    const auto& state = *optimizer.state().at(parameter.unsafeGetTensorImpl());
    expected.states.push_back(dynamic_cast<const torch::optim::AdamWParamState&>(state).exp_avg());
  }
  return expected;
}

/// Rank r has 2 + 2 r batches, after which it knows of no learning rate any more.
template <class Optimizer>
void trains_unevenly(Toy& model, ToyDdp& ddp, Optimizer& optimizer, bool clips) {
  const Expected expected = expected_of(clips);
  join({ddp, optimizer}, [&] {
    for (int step = 0; step < batches_of(world().rank()); ++step) {
      optimizer.zero_grad();
      toy_loss(ddp, step, world().rank()).backward();
      if constexpr (requires { optimizer.clip_grad_norm_(kNorm); }) {
        if (clips) {
          CHECK_TRUE(optimizer.grad_norm() > (step == 0 ? kNorm : 0.0));
          optimizer.clip_grad_norm_(kNorm);
        }
      }
      set_lr(optimizer, rate_of(step));
      optimizer.step();
    }
  });
  for (int to = 0; to < world().size(); ++to) optimizer.consolidate_state_dict(to);
  for (size_t p = 0; p < expected.parameters.size(); ++p) {
    const at::Tensor found = model->parameters()[p];
    CHECK_CLOSE(found, expected.parameters[p], 1e-5, 1.0000000000000002e-6);
    for (const at::Tensor& theirs : world().all_gather(found.detach())) CHECK_EQUAL(theirs, found);
    const auto& state = *optimizer.state_dict().state().at(found.unsafeGetTensorImpl());
    CHECK_CLOSE(dynamic_cast<const torch::optim::AdamWParamState&>(state).exp_avg(), expected.states[p], 1e-4,
                1e-5);
  }
  // Afterwards all is as before, also where the loop's last zero_grad() was another rank's.
  if (world().rank() == world().size() - 1) optimizer.zero_grad();
  toy_loss(ddp, 0, world().rank()).backward();
  optimizer.step();
  for (const at::Tensor& parameter : model->parameters()) {
    const auto all = world().all_gather(parameter.detach());
    for (const at::Tensor& theirs : all) CHECK_EQUAL(theirs, all[0]);
  }
  optimizer.zero_grad();
}

const AdamWOptions& adamw() {
  static const AdamWOptions options = AdamWOptions(0.05).weight_decay(0.1);
  return options;
}

TEST(Zero, ZeroUnderJoin) {
  for (const bool view : {false, true}) {
    for (const bool gradients_are_views : {true, false}) {
      Toy model;
      ToyDdp ddp(model, {.bucket_cap_mb = kTiny, .gradient_as_bucket_view = gradients_are_views});
      ZeroRedundancyOptimizer<FusedAdamW> optimizer(model->parameters(), adamw(),
                                                    {.parameters_as_bucket_view = view});
      trains_unevenly(model, ddp, optimizer, false);
    }
  }
}

TEST(Zero, FusedZeroUnderJoin) {
  ONLY_IF(world().backend_name() == "lockstep");
  for (const bool shared : {false, true}) {
    for (const bool clips : {false, true}) {
      Toy model;
      ToyDdp ddp(model, {.bucket_cap_mb = clips ? kTiny : 25});
      FusedZeroRedundancyOptimizer<FusedAdamW> optimizer(
          ddp, adamw(), {.shared_parameters = shared, .protect_parameters = shared});
      trains_unevenly(model, ddp, optimizer, clips);
    }
  }
}

/// In half precision too, where a quotient of a sum would be rounded twice.
TEST(Zero, FusedZeroUnderJoinDividesByTheRanksThatStillHaveInputs) {
  ONLY_IF(world().backend_name() == "lockstep");
  using torch::optim::SGDOptions;
  const int own = world().rank();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Wide model, plain_model;
    model->to(dtype);
    plain_model->to(dtype);
    DistributedDataParallel ddp(model), reference(plain_model);
    FusedZeroRedundancyOptimizer<FusedSGD> fused(ddp, SGDOptions(0.001));
    FusedSGD plain(plain_model->parameters(), SGDOptions(0.001));
    const auto train = [&](auto& wrapper, auto& optimizer) {
      for (int step = 0; step < batches_of(own); ++step) {
        optimizer.zero_grad();
        at::mse_loss(wrapper(batch_input(step, own).to(dtype)).to(at::kFloat), batch_target(step, own))
            .backward();
        optimizer.step();
      }
    };
    join({ddp, fused}, [&] { train(ddp, fused); }, {.divide_by_initial_world_size = false});
    join({reference}, [&] { train(reference, plain); }, {.divide_by_initial_world_size = false});
    for (size_t p = 0; p < model->parameters().size(); ++p) {
      CHECK_EQUAL(model->parameters()[p], plain_model->parameters()[p]);
    }
  }
}

/// A parameter that some steps leave out everywhere is stepped on no rank, and one that is used somewhere on
/// all.
TEST(Zero, ZeroUnderJoinWithUnusedParameters) {
  const auto train = [](auto& model, auto& ddp, auto& optimizer, int rank) {
    for (int step = 0; step < batches_of(rank); ++step) {
      optimizer.zero_grad();
      const auto [left, right] = ddp(wave({6, 4}, 10 * step + rank));
      (step % 2 == 0 ? left + right : left).square().sum().backward();
      optimizer.step();
    }
    static_cast<void>(model);
  };
  TwoHeads model, alone;
  DistributedDataParallel<TwoHeads> ddp(model, {.find_unused_parameters = true});
  ZeroRedundancyOptimizer<FusedAdamW> optimizer(model->parameters(), adamw());
  join({ddp, optimizer}, [&] { train(model, ddp, optimizer, world().rank()); });
  FusedAdamW expected(alone->parameters(), adamw());
  for (int step = 0; step < batches_of(world().size() - 1); ++step) {
    expected.zero_grad();
    for (int rank = 0; rank < world().size(); ++rank) {
      if (step >= batches_of(rank)) continue;
      const auto [left, right] = alone->forward(wave({6, 4}, 10 * step + rank));
      (step % 2 == 0 ? left + right : left).square().sum().backward();
    }
    for (at::Tensor& parameter : alone->parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad().div_(world().size());
    }
    expected.step();
  }
  for (size_t p = 0; p < model->parameters().size(); ++p) {
    CHECK_CLOSE(model->parameters()[p], alone->parameters()[p], 1e-5, 1.0000000000000002e-6);
  }
}

/// Named nowhere, a step would meet ranks that have joined and know nothing of it.
TEST(Zero, AStepThatJoinDoesNotKnowOf) {
  Toy model;
  ToyDdp ddp(model);
  ZeroRedundancyOptimizer<FusedAdamW> optimizer(model->parameters(), adamw());
  check_throws<Error>(
      [&] {
        join({ddp}, [&] {
          toy_loss(ddp, 0, world().rank()).backward();
          optimizer.step();
        });
      },
      "ZeroRedundancyOptimizer: step() inside a join() that does not know of it");
  optimizer.step();
}

}  // namespace
}  // namespace lockstep::testing
