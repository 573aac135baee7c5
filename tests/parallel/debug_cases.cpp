// Cases that debug_level_test.py starts with different values of TORCH_DISTRIBUTED_DEBUG.
#include <ATen/ops/ones.h>

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

/// Without it, as many elements are enough.
TEST(DdpDebug, DifferentShapesOfOneSizePass) {
  const World& world = testing::world();
  const at::Tensor tensor = world.rank() == 0 ? at::ones({2, 3}) : at::ones({3, 2});
  world.all_reduce(tensor);
  CHECK_TRUE(tensor.sum().item<double>() == 6 * world.size());
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
    CHECK_TRUE(is_close(model->body->weight.grad(), expected[0]));
  }
}

}  // namespace
}  // namespace lockstep::testing
