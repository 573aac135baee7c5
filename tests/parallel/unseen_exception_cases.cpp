// Exceptions that DistributedDataParallel alone does not see, or that end the job: what the page says of each without step().
#include <ATen/ops/mse_loss.h>
#include <fmt/format.h>
#include <torch/nn/modules/batchnorm.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/step/check_replicas.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// All ranks, with a deadline that a test can wait for.
ProcessGroup impatient_group() {
  std::vector<int> everyone;
  for (int rank = 0; rank < world().size(); ++rank) everyone.push_back(rank);
  return world().new_group(everyone, {.timeout = std::chrono::seconds(1)});
}

/// How an error names the last rank; between machines it may have the number among those of its machine.
std::string name_of_last() {
  const bool is_apart = world().local_world_size() < world().size();
  return is_apart ? "rank " : fmt::format("rank {}", world().size() - 1);
}

/// The last rank meets `mine`; the others wait for it until the deadline, and `theirs` names it. The job is lost.
void check_lost(const std::function<void()>& mine, const std::function<void()>& theirs) {
  const int last = world().size() - 1;
  if (world().rank() == last) {
    check_throws<std::exception>(mine, "");
  } else {
    check_throws<Error>(theirs, name_of_last());
  }
  world().barrier();  // nobody leaves before all have seen it
  destroy();
}

TEST(UnseenExceptions, ALossWithoutTheModelNeedsAZeroOfItsOutput) {
  const int own = world().rank(), last = world().size() - 1;
  Toy model, alone;
  DistributedDataParallel ddp(model);
  const auto loss_of = [](Toy& call, int rank) {
    return at::mse_loss(call->forward(batch_input(0, rank)), batch_target(0, rank));
  };
  const at::Tensor output = ddp(batch_input(0, own));
  if (own == last) {
    (output.sum() * 0).backward();
  } else {
    at::mse_loss(output, batch_target(0, own)).backward();
  }
  for (int rank = 0; rank < last; ++rank) (loss_of(alone, rank) / world().size()).backward();
  for (const auto& parameter : alone->named_parameters()) {
    SCOPED_CASE("{}", parameter.key());
    CHECK_CLOSE(model->named_parameters()[parameter.key()].grad(), parameter.value().grad(), 1e-5, 1e-7);
  }
}

TEST(UnseenExceptions, BeforeTheForwardOfAnotherModuleEndsAtTheDeadline) {
  ONLY_IF(world().backend_name() == "lockstep");  // on Gloo destroy() waits for the others until the deadline
  const int own = world().rank();
  {
    const ProcessGroup group = impatient_group();
    Toy first;
    torch::nn::Linear second(5, 3);
    fill_with_waves(*second);
    DistributedDataParallel one(first, {.process_group = group});
    DistributedDataParallel two(second, {.process_group = group});
    const auto both = [&] { two(one(batch_input(0, own))).sum().backward(); };
    both();
    check_lost(
        [&] {
          const at::Tensor output = one(batch_input(1, own));
          throw std::runtime_error("thrown between the forwards");
        },
        both);
  }
}

/// With running statistics, which each forward copies from rank 0.
struct UnseenNormedImpl : torch::nn::Module {
  UnseenNormedImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(10));
    linear = register_module("linear", torch::nn::Linear(10, 5));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return linear->forward(norm->forward(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(UnseenNormed);

TEST(UnseenExceptions, BetweenForwardsWithBuffersIsAMismatch) {
  ONLY_IF(world().backend_name() == "lockstep");
  const int own = world().rank();
  {
    const ProcessGroup group = impatient_group();
    UnseenNormed model;
    DistributedDataParallel ddp(model, {.process_group = group});
    const auto two_forwards = [&] {
      (ddp(batch_input(0, own)).sum() + ddp(batch_input(1, own)).sum()).backward();
    };
    two_forwards();
    // Its next step begins with a forward, the others' second one.
    const auto fails = [&] {
      {
        const at::Tensor output = ddp(batch_input(2, own));
        static_cast<void>(output);
      }
      two_forwards();
      throw std::runtime_error("thrown between the forwards");
    };
    if (own == world().size() - 1) {
      check_throws<std::exception>(fails, "");
    } else {
      check_throws<MismatchError>(two_forwards, "");
    }
    world().barrier();
  }
  destroy();
}

/// Two operations one after the other, between which a rank may throw.
TEST(UnseenExceptions, BetweenTheOperationsOfAHookIsAMismatch) {
  ONLY_IF(world().backend_name() == "lockstep");
  const int own = world().rank(), last = world().size() - 1;
  {
    const ProcessGroup group = impatient_group();
    Toy model;
    DistributedDataParallel ddp(model, {.process_group = group});
    const auto fails = std::make_shared<bool>(false);
    ddp.register_comm_hook(fails,
                           [own, last](const std::shared_ptr<bool>& now, GradBucket& bucket) -> Future {
                             return allreduce_hook(std::nullopt, bucket)
                                 .then([&bucket, now, own, last](const at::Tensor&) -> Future {
                                   if (*now && own == last)
                                     throw std::runtime_error("thrown between the operations");
                                   return allreduce_hook(std::nullopt, bucket);
                                 });
                           });
    const auto pass = [&] { ddp(batch_input(0, own)).sum().backward(); };
    pass();
    *fails = true;
    if (own == last) {
      check_throws<std::exception>(pass, "");
    } else {
      check_throws<MismatchError>(pass, "");
    }
    world().barrier();
  }
  destroy();
}

struct UnseenSyncedImpl : torch::nn::Module {
  explicit UnseenSyncedImpl(const ProcessGroup& group) {
    first = register_module("first", torch::nn::Linear(10, 10));
    norm = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(10), group));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x, bool throws) {
    const at::Tensor h = first->forward(x);
    if (throws) throw std::runtime_error("thrown before the layer");
    return norm->forward(h);
  }
  torch::nn::Linear first{nullptr};
  SyncBatchNorm norm{nullptr};
};
TORCH_MODULE(UnseenSynced);

TEST(UnseenExceptions, BeforeALayerWithCollectivesEndsAtTheDeadline) {
  ONLY_IF(world().backend_name() == "lockstep");
  const int own = world().rank();
  {
    const ProcessGroup group = impatient_group();
    UnseenSynced model(group);
    DistributedDataParallel ddp(model, {.process_group = group});
    check_lost([&] { ddp(batch_input(0, own), true).sum().backward(); },
               [&] { ddp(batch_input(0, own), false).sum().backward(); });
  }
}

/// The second backward of this rank is missing: its next one takes that place, and the others end up with one too many.
TEST(UnseenExceptions, BetweenTwoBackwardsOfOneForwardIsNotSeen) {
  ONLY_IF(world().backend_name() == "lockstep");
  const int own = world().rank(), last = world().size() - 1;
  {
    const ProcessGroup group = impatient_group();
    Toy model;
    DistributedDataParallel ddp(model, {.process_group = group});
    const auto forward = [&](int step) { return ddp(batch_input(step, own)).square().sum(); };
    {
      const at::Tensor loss = forward(0);
      loss.backward({}, /*retain_graph=*/true);
      try {
        if (own == last) throw std::runtime_error("thrown between the backwards");
        loss.backward();
      } catch (const std::runtime_error&) {
        CHECK_TRUE(own == last);
      }
    }
    const auto next = [&] { forward(1).backward(); };
    if (own == last) {
      next();  // nothing says that it is another step's
    } else {
      check_throws<Error>(next, name_of_last());
    }
    world().barrier();
  }
  destroy();
}

TEST(UnseenExceptions, InTheOptimizerWeightsDiffer) {
  const int own = world().rank(), last = world().size() - 1;
  Toy model;
  DistributedDataParallel ddp(model);
  FusedSGD optimizer(parameters(model), 0.1);
  ddp(batch_input(0, own)).square().sum().backward();
  try {
    if (own == last) throw std::runtime_error("thrown in the optimizer");
    optimizer.step();
  } catch (const std::runtime_error&) {
  }
  const auto weights = world().all_gather(model->net1->weight.detach());
  CHECK_TRUE(!weights[0].equal(weights[static_cast<size_t>(last)]));
  check_throws<ReplicasDifferError>([&] { check_replicas(ddp, optimizer); }, "net1");
}

}  // namespace
}  // namespace lockstep::testing
