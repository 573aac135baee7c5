// Communication hooks: what they see, when they run, and what becomes of their results.
#include <torch/optim/sgd.h>

#include "lockstep/parallel/hooks/debugging_hooks.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/join.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// Parameters after five steps; `prepare` may register a hook. `gradients`: receives those of all steps.
template <class Prepare>
std::vector<at::Tensor> train_with_hook(DistributedDataParallelOptions options, const Prepare& prepare,
                                        std::vector<at::Tensor>* gradients = nullptr) {
  Toy model;
  DistributedDataParallel ddp(model, options);
  prepare(ddp);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad(step % 2 == 0);
    toy_loss(ddp, step, world().rank()).backward();
    if (gradients != nullptr) keep_gradients(*model, *gradients);
    optimizer.step();
  }
  return model->parameters();
}

void check_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                double tolerance = 0) {
  for (size_t p = 0; p < expected.size(); ++p) {
    CHECK_CLOSE(found[p], expected[p], tolerance, tolerance);
  }
}

TEST(CommHooks, TheAllreduceHookChangesNoBit) {
  std::vector<at::Tensor> expected_gradients;
  const auto expected = train_with_hook(
      {}, [](auto&) {}, &expected_gradients);
  const auto check = [&](const DistributedDataParallelOptions& options, const auto& prepare) {
    std::vector<at::Tensor> gradients;
    check_same(train_with_hook(options, prepare, &gradients), expected);
    check_same(gradients, expected_gradients);
  };
  for (const double cap : {kTiny, 0.0003, 25.0}) {
    for (const bool as_view : {true, false}) {
      const DistributedDataParallelOptions options{.bucket_cap_mb = cap, .gradient_as_bucket_view = as_view};
      check(options, [](auto& ddp) { ddp.register_comm_hook(std::nullopt, allreduce_hook); });
      check(options, [](auto& ddp) { ddp.register_comm_hook(world(), allreduce_hook); });
    }
  }
  check({.static_graph = true}, [](auto& ddp) { ddp.register_comm_hook(std::nullopt, allreduce_hook); });
}

TEST(CommHooks, HalfPrecisionHooks) {
  const auto expected = train_with_hook({}, [](auto&) {});
  const DistributedDataParallelOptions options{.bucket_cap_mb = 0.0003};
  const auto fp16 =
      train_with_hook(options, [](auto& ddp) { ddp.register_comm_hook(std::nullopt, fp16_compress_hook); });
  const auto bf16 =
      train_with_hook(options, [](auto& ddp) { ddp.register_comm_hook(std::nullopt, bf16_compress_hook); });
  check_same(fp16, expected, 2e-3);
  check_same(bf16, expected, 2e-2);
  CHECK_TRUE(!fp16[0].equal(expected[0]));
  CHECK_TRUE(!bf16[0].equal(fp16[0]));
  // Around allreduce_hook: the division comes after the sum, where powers of two make no difference.
  const double tolerance = (world().size() & (world().size() - 1)) == 0 ? 1e-6 : 2e-3;
  check_same(train_with_hook(options,
                             [](auto& ddp) {
                               ddp.register_comm_hook(std::nullopt, fp16_compress_wrapper(allreduce_hook));
                             }),
             fp16, tolerance);
  check_same(train_with_hook(options,
                             [](auto& ddp) {
                               ddp.register_comm_hook(std::nullopt, bf16_compress_wrapper(allreduce_hook));
                             }),
             bf16, tolerance * 10);
}

/// What a hook that averages has seen.
struct Seen {
  std::vector<size_t> indices;
  std::vector<bool> last;
  int64_t elements = 0, parameters = 0;
  bool is_whole = true;  // buffers are exactly their gradients, views of them
};

Future watching_hook(const std::shared_ptr<Seen>& seen, GradBucket& bucket) {
  seen->indices.push_back(bucket.index());
  seen->last.push_back(bucket.is_last());
  seen->elements += bucket.buffer().numel();
  int64_t elements = 0;
  const auto gradients = bucket.gradients();
  for (size_t i = 0; i < gradients.size(); ++i) {
    elements += gradients[i].numel();
    seen->is_whole = seen->is_whole && gradients[i].sizes() == bucket.parameters()[i].sizes() &&
                     gradients[i].is_alias_of(bucket.buffer()) &&
                     gradients[i].equal(bucket.parameters()[i].grad());
  }
  seen->is_whole = seen->is_whole && elements == bucket.buffer().numel();
  seen->parameters += static_cast<int64_t>(gradients.size());
  return allreduce_hook(std::nullopt, bucket);
}

TEST(CommHooks, HooksSeeEveryBucketInOrder) {
  const auto seen = std::make_shared<Seen>();
  Toy model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  ddp.register_comm_hook(seen, watching_hook);
  for (int step = 0; step < 3; ++step) {
    *seen = {};
    model->zero_grad();
    toy_loss(ddp, step, world().rank()).backward();
    CHECK_TRUE((seen->indices == std::vector<size_t>{0, 1, 2, 3}));
    CHECK_TRUE((seen->last == std::vector<bool>{false, false, false, true}));
    CHECK_TRUE(seen->elements == 10 * 10 + 10 + 10 * 5 + 5);
    CHECK_TRUE(seen->parameters == 4);
    CHECK_TRUE(seen->is_whole);
    check_gradients(*model, expected_toy_gradients(step));
  }
  // Not without synchronization.
  *seen = {};
  {
    const auto guard = ddp.no_sync();
    toy_loss(ddp, 0, world().rank()).backward();
  }
  CHECK_TRUE(seen->indices.empty());
}

/// Three operations one after the other, other buckets' between them; the result is a tensor of its own.
Future three_stages(const ProcessGroup& group, GradBucket& bucket) {
  const at::Tensor sum = bucket.buffer().to(at::kDouble);
  const double size = group.size();
  return Future(group.all_reduce_async(sum), sum)
      .then([group](const at::Tensor& value) -> Future {
        return Future(group.all_reduce_async(value), value).then([](const at::Tensor& v) { return v / 2; });
      })
      .then([group](at::Tensor value) -> Future {
        return {group.all_reduce_async(value, {.op = ReduceOp::MAX}), value};
      })
      .then([size](const at::Tensor& value) { return value * 2 / (size * size); });
}

TEST(CommHooks, HooksOfSeveralStages) {
  const auto expected = train_with_hook({}, [](auto&) {});
  for (const double cap : {kTiny, 25.0}) {
    const auto found = train_with_hook({.bucket_cap_mb = cap}, [](auto& ddp) {
      ddp.register_comm_hook(ProcessGroup(world()), three_stages);
    });
    check_same(found, expected, 1e-5);
  }
}

TEST(CommHooks, WhenHooksAreRefused) {
  Toy model;
  DistributedDataParallel ddp(model);
  ddp.register_comm_hook(std::nullopt, allreduce_hook);
  check_throws<Error>([&] { ddp.register_comm_hook(std::nullopt, allreduce_hook); }, "can be called once");
  Toy other;
  DistributedDataParallel trained(other);
  toy_loss(trained, 0, world().rank()).backward();
  check_throws<Error>([&] { trained.register_comm_hook(std::nullopt, allreduce_hook); },
                      "before the first backward pass");
  Toy third;
  DistributedDataParallel wrong(third);
  wrong.register_comm_hook(std::nullopt, [](std::nullopt_t, GradBucket& bucket) -> Future {
    return bucket.buffer().narrow(0, 0, 3);
  });
  check_throws<Error>([&] { toy_loss(wrong, 0, world().rank()).backward(); }, "for bucket 0 has 3 elements");
  check_throws<ValueError>(
      [&] { GradBucket(world(), 0, 1, at::zeros({4}), {}, {}, {}).set_buffer(at::zeros({5})); },
      "of 4 elements");
}

TEST(CommHooks, TheNoopHookLeavesGradients) {
  const int rank = world().rank();
  Toy model, alone;
  DistributedDataParallel ddp(model);
  ddp.register_comm_hook(std::nullopt, noop_hook<std::nullopt_t>);
  toy_loss(ddp, 3, rank).backward();
  toy_loss(alone, 3, rank).backward();
  for (size_t p = 0; p < 4; ++p) {
    CHECK_CLOSE(model->parameters()[p].grad(), alone->parameters()[p].grad(), 1e-5, 1.0000000000000002e-6);
  }
}

TEST(CommHooks, HooksAndMissingGradients) {
  const at::Tensor input = wave({3, 4}, world().rank());
  TwoHeads model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .find_unused_parameters = true});
  ddp.register_comm_hook(std::nullopt, allreduce_hook);
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    const auto [left, right] = ddp(input);
    (world().rank() == 0 ? (left + right).sum() : left.sum()).backward();
    CHECK_TRUE(std::abs(model->right->bias.grad().item<double>() - 3.0 / world().size()) < 1e-6);
  }
  const at::Tensor before = model->right->bias.grad().clone();
  std::get<0>(ddp(input)).sum().backward();  // used nowhere: keeps its gradient
  CHECK_EQUAL(model->right->bias.grad(), before);

  TwoHeads strict;
  DistributedDataParallel strict_ddp(strict);
  strict_ddp.register_comm_hook(std::nullopt, fp16_compress_hook);
  check_throws<Error>([&] { std::get<0>(strict_ddp(input)).sum().backward(); },
                      "no gradient for right.weight");
  const auto [left, right] = strict_ddp(input);
  (left + right).sum().backward();  // the next step works
}

TEST(CommHooks, ExceptionsWithHooks) {
  const int rank = world().rank();
  Toy model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  ddp.register_comm_hook(std::nullopt, allreduce_hook);
  const at::Tensor output = ddp(batch_input(0, rank));
  if (rank == 0) {
    output.register_hook(
        [](const at::Tensor& /*gradient*/) -> at::Tensor { throw std::runtime_error("mine"); });
    check_throws<std::runtime_error>([&] { output.sum().backward(); }, "mine");
  } else {
    check_throws<Error>([&] { output.sum().backward(); }, "rank 0 ended in an exception");
  }
  model->zero_grad();
  toy_loss(ddp, 1, rank).backward();
  check_gradients(*model, expected_toy_gradients(1));
}

TEST(CommHooks, AnExceptionInAHookOnAllRanks) {
  const int rank = world().rank();
  Toy model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  const auto calls = std::make_shared<int>(0);
  ddp.register_comm_hook(calls, [](const std::shared_ptr<int>& count, GradBucket& bucket) {
    if (++*count == 2) throw std::runtime_error("the second bucket");
    return allreduce_hook(std::nullopt, bucket);
  });
  check_throws<std::runtime_error>([&] { toy_loss(ddp, 0, rank).backward(); }, "the second bucket");
  model->zero_grad();
  toy_loss(ddp, 1, rank).backward();
  check_gradients(*model, expected_toy_gradients(1));
}

/// In the pass whose buckets all leave at its end, with operations under way.
TEST(CommHooks, AnExceptionInAHookAtTheEnd) {
  const int rank = world().rank();
  for (const bool in_a_stage : {false, true}) {
    for (int round = 0; round < 5; ++round) {
      Toy model;
      DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .static_graph = true});
      const auto fails = std::make_shared<bool>(true);
      ddp.register_comm_hook(
          fails, [in_a_stage](const std::shared_ptr<bool>& now, GradBucket& bucket) -> Future {
            if (!*now || bucket.index() != 1) return allreduce_hook(std::nullopt, bucket);
            if (!in_a_stage) throw std::runtime_error("the second bucket");
            return allreduce_hook(std::nullopt, bucket).then([](const at::Tensor& /*value*/) -> Future {
              throw std::runtime_error("the second bucket");
            });
          });
      check_throws<std::runtime_error>([&] { toy_loss(ddp, 0, rank).backward(); }, "the second bucket");
      *fails = false;
      for (int step = 1; step < 3; ++step) {
        model->zero_grad();
        toy_loss(ddp, step, rank).backward();
        check_gradients(*model, expected_toy_gradients(step));
      }
    }
  }
}

TEST(CommHooks, HooksUnderJoin) {
  Toy model, plain;
  const auto train = [](Toy& toy, auto& ddp) {
    torch::optim::SGD optimizer(toy->parameters(), 0.1);
    join({ddp}, [&] {
      for (int step = 0; step < 2 + world().rank(); ++step) {
        optimizer.zero_grad();
        toy_loss(ddp, step, world().rank()).backward();
        optimizer.step();
      }
    });
  };
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny}), plain_ddp(plain);
  ddp.register_comm_hook(std::nullopt, allreduce_hook);
  train(model, ddp);
  train(plain, plain_ddp);
  check_same(model->parameters(), plain->parameters(), 1e-5);
}

}  // namespace
}  // namespace lockstep::testing
