// TORCH_DISTRIBUTED_DEBUG, and where a module's parameters may be. debug_level_test.py starts some of these.
#include <ATen/ops/ones.h>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// With DETAIL all ranks learn what the others call, and that the group is broken.
void different_shapes_are_told() {
  const World& world = testing::world();
  const at::Tensor same = wave({2, 2}, 1);
  world.all_reduce(same);
  const at::Tensor tensor = world.rank() == 0 ? wave({2, 3}, 1) : wave({3, 2}, 1);
  const std::string expected =
      "rank 0 collective 2: all_reduce Float [2, 3] SUM; rank 1 collective 2: all_reduce Float [3, 2] SUM";
  check_throws<MismatchError>([&] { world.all_reduce(tensor); }, expected);
  check_throws<MismatchError>([&] { world.barrier(); }, expected);
}

/// Without it, as many elements are enough.
void different_shapes_of_one_size_pass() {
  const World& world = testing::world();
  const at::Tensor tensor = world.rank() == 0 ? at::ones({2, 3}) : at::ones({3, 2});
  world.all_reduce(tensor);
  CHECK_TRUE(tensor.sum().item<double>() == 6 * world.size());
}

/// The same training whatever is compared; the right head is used by nobody.
void trains_with_an_unused_head() {
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

void devices_are_checked() {
  world();
  const auto refused = [](Toy& model, DistributedDataParallelOptions options, const std::string& why) {
    check_throws<ValueError>([&] { DistributedDataParallel wrong(model, options); },
                             "DistributedDataParallel: " + why);
  };
  Toy on_cpu;
  refused(on_cpu, {.device_ids = {0, 1}}, "device_ids may name one device at most, not 2");
  refused(on_cpu, {.device_ids = {0}}, "device_ids and output_device are for modules on one GPU");
  refused(on_cpu, {.output_device = 0}, "device_ids and output_device are for modules on one GPU");
}

}  // namespace

Cases debug_cases() {
  return {{"different_shapes_are_told", different_shapes_are_told},
          {"different_shapes_of_one_size_pass", different_shapes_of_one_size_pass},
          {"trains_with_an_unused_head", trains_with_an_unused_head},
          {"devices_are_checked", devices_are_checked}};
}

}  // namespace lockstep::testing
