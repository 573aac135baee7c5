// Uneven inputs.
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include <chrono>

#include "lockstep/parallel/join.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

bool is_same_everywhere(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    const auto all = world().all_gather(parameter.detach());
    for (const at::Tensor& theirs : all) {
      if (!theirs.equal(all[0])) return false;
    }
  }
  return true;
}

/// Rank r has `fewest` + 2 r batches. What every step's gradients are is computed beside it.
void join_with_uneven_inputs(int fewest) {
  const int own = world().rank(), size = world().size();
  const auto batches = [fewest](int rank) { return fewest + 2 * rank; };
  for (const bool initial : {true, false}) {
    for (const bool unused : {true, false}) {
      Toy model, alone;
      DistributedDataParallel ddp(model, {.bucket_cap_mb = 1e-6, .find_unused_parameters = unused});
      torch::optim::SGD optimizer(model->parameters(), 0.1), expected(alone->parameters(), 0.1);
      join({ddp},
           [&] {
             for (int step = 0; step < batches(own); ++step) {
               optimizer.zero_grad();
               at::mse_loss(ddp(batch_input(step, own)), batch_target(step, own)).backward();
               optimizer.step();
             }
           },
           {.divide_by_initial_world_size = initial});
      for (int step = 0; step < batches(size - 1); ++step) {
        expected.zero_grad();
        int active = 0;
        for (int rank = 0; rank < size; ++rank) {
          if (step >= batches(rank)) continue;
          ++active;
          at::mse_loss(alone->forward(batch_input(step, rank)), batch_target(step, rank)).backward();
        }
        for (at::Tensor& parameter : alone->parameters()) {
          parameter.mutable_grad().div_(initial ? size : active);
        }
        expected.step();
      }
      for (size_t p = 0; p < 4; ++p) {
        CHECK_CLOSE(model->parameters()[p], alone->parameters()[p], 1e-5, 1.0000000000000002e-6);
      }
      CHECK_TRUE(is_same_everywhere(*model));
      // Afterwards all is as before.
      model->zero_grad();
      ddp(batch_input(0, own)).sum().backward();
      CHECK_CLOSE(model->net2->bias.grad(), at::full({5}, 20.0), 1e-5, 1.0000000000000002e-6);
    }
  }
}

TEST(Join, UnevenInputs) {
  join_with_uneven_inputs(2);
  join_with_uneven_inputs(0);  // rank 0 has none at all
}

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(10));
    out = register_module("out", torch::nn::Linear(10, 3));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return out->forward(norm->forward(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Normed);

/// Two models with buffers, one of them trained under no_sync() now and then; rank 0 ends last. `listed_first`: the
/// forwards come in the order of join()'s list.
void join_two_models(bool listed_first) {
  const int own = world().rank(), size = world().size();
  Normed one, two;
  DistributedDataParallel a(one), b(two);
  torch::optim::SGD optimize_a(one->parameters(), 1e-3), optimize_b(two->parameters(), 1e-3);
  join({a, b}, [&] {
    for (int step = 0; step < 3 * (size - own); ++step) {
      optimize_a.zero_grad();
      optimize_b.zero_grad();
      {
        const auto guard = a.no_sync();
        a(batch_input(step, own)).sum().backward();
      }
      // One loss of both.
      const auto loss_of = [&](auto& ddp) { return ddp(batch_input(step, own)).square().sum(); };
      const at::Tensor first = listed_first ? loss_of(a) : loss_of(b);
      (first + (listed_first ? loss_of(b) : loss_of(a))).backward();
      optimize_a.step();
      optimize_b.step();
    }
  });
  CHECK_TRUE(is_same_everywhere(*one));
  CHECK_TRUE(is_same_everywhere(*two));
  const auto means = world().all_gather(one->norm->running_mean);
  for (const at::Tensor& mean : means) CHECK_EQUAL(mean, means[0]);
  CHECK_TRUE(one->norm->num_batches_tracked.item<int64_t>() == 6 * size);
}

TEST(Join, TwoModelsAndAccumulation) {
  join_two_models(true);
  join_two_models(false);
}

TEST(Join, EarlyTerminationThrowsOnAllRanks) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  int steps = 0;
  const auto train = [&] {
    for (; steps < (own == 1 ? 2 : 5); ++steps) ddp(batch_input(steps, own)).sum().backward();
  };
  check_throws<Error>([&] { join({ddp}, train, {.throw_on_early_termination = true}); },
                      "rank 1 has no inputs left while others have");
  CHECK_TRUE(steps == 2);
  // The group still works, and equal numbers are no error.
  steps = 0;
  join({ddp},
       [&] {
         for (; steps < 2; ++steps) ddp(batch_input(steps, own)).sum().backward();
       },
       {.throw_on_early_termination = true});
  join({ddp}, [&] { ddp(batch_input(0, own)).sum().backward(); }, {.enable = false});
}

struct SyncedUnderJoinImpl : torch::nn::Module {
  explicit SyncedUnderJoinImpl(const ProcessGroup& group) {
    norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(10), group));
    out = register_module("out", torch::nn::Linear(10, 3));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return out->forward(norm->forward(x)); }
  SyncBatchNorm norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(SyncedUnderJoin);

/// A layer with collectives of its own cannot go on without the ranks that have joined: all stop before its forward.
TEST(Join, SyncBatchNormStopsAtTheFirstRankThatRunsOut) {
  const int own = world().rank();
  SyncedUnderJoin model(world());
  DistributedDataParallel ddp(model);
  int steps = 0;
  const auto train = [&] {
    for (; steps < (own == 1 ? 2 : 5); ++steps) ddp(batch_input(steps, own)).square().sum().backward();
  };
  check_throws<Error>([&] { join({ddp}, train, {.throw_on_early_termination = true}); },
                      "rank 1 has no inputs left while others have");
  CHECK_TRUE(steps == 2);
  model->zero_grad();
  ddp(batch_input(0, own)).square().sum().backward();
  for (const at::Tensor& theirs : world().all_gather(model->out->weight.grad())) {
    CHECK_EQUAL(theirs, model->out->weight.grad());
  }
}

/// Without it the others wait in the layer, and the rank without inputs for them.
TEST(Join, SyncBatchNormWithoutARankEndsAtTheDeadline) {
  ONLY_IF(world().backend_name() == "lockstep");
  const int own = world().rank();
  std::vector<int> everyone;
  for (int rank = 0; rank < world().size(); ++rank) everyone.push_back(rank);
  const ProcessGroup group = world().new_group(everyone, {.timeout = std::chrono::seconds(1)});
  SyncedUnderJoin model(group);
  DistributedDataParallel ddp(model, {.process_group = group});
  const auto train = [&] {
    for (int step = 0; step < (own == 1 ? 1 : 2); ++step)
      ddp(batch_input(step, own)).square().sum().backward();
  };
  const auto run = [&] { join({ddp}, train); };
  if (own == 1) {
    check_throws<CommError>(run, "");  // the deadline, or that another rank has left the join() at its own
  } else {
    const bool is_apart = world().local_world_size() < world().size();
    check_throws<TimeoutError>(run, is_apart ? "of which rank 1 did not come" : "waited 1000 ms for rank 1");
  }
  world().barrier();  // nobody leaves before all have seen it
  destroy();
}

TEST(Join, AnExceptionUnderJoin) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  check_throws<std::runtime_error>(
      [&] {
        join({ddp}, [&] {
          ddp(batch_input(0, own)).sum().backward();
          throw std::runtime_error("no more data");
        });
      },
      "no more data");
  check_throws<ValueError>([] { join({}, [] {}); }, "at least one model");
  model->zero_grad();
  ddp(batch_input(0, own)).sum().backward();
  CHECK_CLOSE(model->net2->bias.grad(), at::full({5}, 20.0), 1e-5, 1.0000000000000002e-6);
}

}  // namespace
}  // namespace lockstep::testing
