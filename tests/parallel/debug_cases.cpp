// Cases that debug_level_test.py starts with different values of TORCH_DISTRIBUTED_DEBUG.
#include <ATen/ops/ones.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// With DETAIL all ranks learn what the others call, and that the group is broken.
TEST(DdpDebug, DifferentShapesAreTold) {
  const World& world = testing::world();
  const at::Tensor same = wave({2, 2}, 1);
  world.all_reduce(same);
  const at::Tensor tensor = world.rank() == 0 ? wave({2, 3}, 1) : wave({3, 2}, 1);
  const std::string expected =
      "rank 0 collective 2: all_reduce (float32[2, 3], SUM); "
      "rank 1 collective 2: all_reduce (float32[3, 2], SUM)";
  check_throws<MismatchError>([&] { world.all_reduce(tensor); }, expected);
  check_throws<MismatchError>([&] { world.barrier(); }, expected);
  destroy();
}

/// Each difference in a job of its own: it breaks the group.
TEST(DdpDebug, EveryDifferenceIsTold) {
  struct Difference {
    std::function<void(const World&, bool)> call;
    std::string part;
  };
  const std::vector<Difference> differences = {
      {[](const World& job, bool odd) { odd ? job.barrier() : job.all_reduce(at::ones({4})); }, "barrier"},
      {[](const World& job, bool odd) { job.all_reduce(at::ones({4}, odd ? at::kDouble : at::kFloat)); },
       "float64[4]"},
      {[](const World& job, bool odd) { job.all_reduce(at::ones({odd ? 5 : 4})); }, "float32[5]"},
      {[](const World& job, bool odd) {
         job.all_reduce(at::ones({4}), {.op = odd ? ReduceOp::MAX : ReduceOp::SUM});
       },
       "float32[4], MAX"},
      {[](const World& job, bool odd) { job.broadcast(at::ones({4}), {.src = odd ? 1 : 0}); },
       "float32[4], root 1"},
  };
  for (const Difference& difference : differences) {
    const World world = testing::world();
    world.barrier();
    check_throws<MismatchError>([&] { difference.call(world, world.rank() == 1); }, difference.part);
    destroy();
  }
}

/// Without it, as many elements are enough.
TEST(DdpDebug, DifferentShapesOfOneSizePass) {
  const World& world = testing::world();
  const at::Tensor tensor = world.rank() == 0 ? at::ones({2, 3}) : at::ones({3, 2});
  world.all_reduce(tensor);
  CHECK_TRUE(tensor.sum().item<double>() == 6 * world.size());
}

/// Every start waits for the others: a rank that has failed follows their order, which is that of construction.
TEST(DdpDebug, AFailureWithTwoModules) {
  const int own = world().rank();
  for (const bool is_swapped : {false, true}) {
    Toy one;
    torch::nn::Linear two(5, 5);
    std::optional<DistributedDataParallel<torch::nn::Linear>> second;
    if (is_swapped) second.emplace(two, DistributedDataParallelOptions{.bucket_cap_mb = kTiny});
    DistributedDataParallel first(one, {.bucket_cap_mb = kTiny});
    if (!is_swapped) second.emplace(two, DistributedDataParallelOptions{.bucket_cap_mb = kTiny});
    for (int step = 0; step < 6; ++step) {
      const int failing = step % 3 - 1;
      const auto run = [&] {
        const at::Tensor loss = (*second)(first(batch_input(step, own))).square().sum();
        if (failing == own) throw std::runtime_error("thrown in the loss");
        loss.backward();
      };
      if (failing < 0) {
        run();
      } else {
        check_throws<std::exception>(run, own == failing ? "thrown in the loss" : "ended in an exception");
        first.recover();
        world().barrier();
      }
    }
  }
}

/// Training is the same whatever is compared; nobody uses the right head.
TEST(DdpDebug, TrainsWithAnUnusedHead) {
  TwoHeads model, alone;
  DistributedDataParallel ddp(model, {.find_unused_parameters = true});
  const auto loss = [](auto& call, int rank) { return std::get<0>(call(wave({6, 4}, rank))).square().sum(); };
  const auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, rank); });
  for (int step = 0; step < 11; ++step) {
    model->zero_grad();
    loss(ddp, world().rank()).backward();
    CHECK_CLOSE(model->body->weight.grad(), expected[0], 1e-5, 1.0000000000000002e-6);
  }
}

}  // namespace
}  // namespace lockstep::testing
