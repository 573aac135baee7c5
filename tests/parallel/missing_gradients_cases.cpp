// Parameters that get no gradient, or only sometimes.
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

TEST(UnusedParameters, AMissingGradientIsNamed) {
  const World& world = testing::world();
  TwoHeads model;
  DistributedDataParallel ddp(model);
  const auto [left, right] = ddp(wave({3, 4}, world.rank()));
  const at::Tensor loss = world.rank() == 0 ? left.sum() : (left + right).sum();
  check_throws<Error>([&] { loss.backward(); }, "no gradient for right.weight (rank 0); right.bias (rank 0)");
  // The next step works.
  const auto [l, r] = ddp(wave({3, 4}, world.rank()));
  (l + r).sum().backward();
}

TEST(UnusedParameters, UnusedParameters) {
  const World& world = testing::world();
  TwoHeads model;
  DistributedDataParallel ddp(model, {.find_unused_parameters = true});
  const at::Tensor input = wave({3, 4}, world.rank());
  // Used on rank 0 only: everyone receives the average, in which the others contribute zeros.
  {
    const auto [left, right] = ddp(input);
    const at::Tensor loss = world.rank() == 0 ? (left + right).sum() : left.sum();
    loss.backward();
  }
  const auto expected = 3.0 / world.size();
  CHECK_TRUE(std::abs(model->right->bias.grad().item<double>() - expected) < 1e-6);
  // Used nowhere: the old gradient stays as it is, also one that is each rank's own.
  model->right->bias.mutable_grad().add_(world.rank());
  const at::Tensor before = model->right->bias.grad().clone();
  model->left->zero_grad();
  model->body->zero_grad();
  {
    const auto [left, right] = ddp(input);
    left.sum().backward();
  }
  CHECK_EQUAL(model->right->bias.grad(), before);
  // A rank without any gradient at all takes part.
  model->zero_grad();
  {
    auto [left, right] = ddp(input);
    const at::Tensor loss =
        world.rank() == 0 ? (left + right).sum() : at::zeros({1}).requires_grad_().sum() + left.sum() * 0;
    loss.backward();
  }
  CHECK_TRUE(model->right->bias.grad().defined());
}

/// Accumulated under no_sync(), not used in the last backward on any rank: averaged all the same.
TEST(UnusedParameters, UsedUnderNoSyncOnly) {
  for (const bool as_view : {true, false}) {
    TwoHeads model, alone;
    DistributedDataParallel ddp(model, {.find_unused_parameters = true, .gradient_as_bucket_view = as_view});
    const auto both = [](auto&& call, int rank) {
      const auto [left, right] = call(wave({3, 4}, rank));
      return (left + right).sum();
    };
    const auto only_left = [](auto&& call, int rank) {
      return std::get<0>(call(wave({3, 4}, rank + 5))).sum();
    };
    const auto expected =
        average_gradients(*alone, [&](int rank) { return both(alone, rank) + only_left(alone, rank); });
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      {
        const auto guard = ddp.no_sync();
        both(ddp, world().rank()).backward();
      }
      only_left(ddp, world().rank()).backward();
      check_gradients(*model, expected);
    }
  }
}

/// An output that is unused everywhere; a loss that does not reach the module on one rank.
TEST(UnusedParameters, UnusedBesideTheBuckets) {
  TwoHeads model, alone;
  DistributedDataParallel ddp(model, {.find_unused_parameters = true, .gradient_as_bucket_view = false});
  const int own = world().rank();
  std::get<0>(ddp(wave({3, 4}, own))).sum().backward();
  CHECK_TRUE(!model->right->weight.grad().defined());
  CHECK_TRUE(ddp.logging_data().unused_parameter_size == 5 * 4);
  const auto loss = [](auto&& call, int rank) {
    const auto [left, right] = call(wave({3, 4}, rank));
    return rank == 0 ? (left + right).sum() : left.sum();
  };
  model->zero_grad();
  const auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, rank); });
  loss(ddp, own).backward();
  check_gradients(*model, expected);
  const at::Tensor kept = model->right->weight.grad().clone();
  model->left->zero_grad();
  model->body->zero_grad();
  std::get<0>(ddp(wave({3, 4}, own))).sum().backward();
  CHECK_EQUAL(model->right->weight.grad(), kept);
}

/// A regularizer of a parameter that the forward did not use: its gradient comes first of all.
TEST(UnusedParameters, AGradientFromOutsideTheForward) {
  TwoHeads model;
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    const auto [left, right] = ddp(wave({3, 4}, world().rank()));
    const at::Tensor loss = left.sum() + model->right->weight.sum() + model->right->bias.sum();
    loss.backward();
    CHECK_CLOSE(model->right->weight.grad(), at::ones({1, 4}), 1e-5, 1.0000000000000002e-6);
  }
}

}  // namespace
}  // namespace lockstep::testing
