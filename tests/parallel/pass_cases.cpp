// Where a pass begins and ends, what stays local, and what an exception leaves behind.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <thread>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// After a pass the module is its own again, on any rank alone.
TEST(Passes, TheModuleAloneAfterAPass) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    toy_loss(ddp, step, own).backward();
    check_gradients(*model, expected_toy_gradients(step));
    model->zero_grad();
    if (own == 0) {
      model->forward(batch_input(0, 0)).sum().backward();
      CHECK_CLOSE(model->net2->bias.grad(), at::ones({5}) * 20, 1e-5, 1e-8);
    }
  }
}

TEST(Passes, APenaltyWithABackwardOfItsOwn) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    toy_loss(ddp, step, own).backward();
    auto expected = expected_toy_gradients(step);
    (model->net1->weight.square().sum() + model->net2->weight.square().sum()).backward();
    expected[0] += 2 * model->net1->weight.detach();
    expected[2] += 2 * model->net2->weight.detach();
    check_gradients(*model, expected);
  }
}

TEST(Passes, TrainingInEvalModeAverages) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  model->eval();
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    toy_loss(ddp, step, own).backward();
    optimizer.step();
    // Evaluation is nobody else's concern.
    const torch::NoGradGuard no_grad;
    if (own == 0) ddp(batch_input(step, own));
  }
  for (const at::Tensor& weights : world().all_gather(model->net1->weight.detach())) {
    CHECK_EQUAL(weights, model->net1->weight);
  }
}

/// What does not reach the parameters is this rank's own: the others need not do it too.
TEST(Passes, GradientsOfTheInputAverageNothing) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 3; ++step) {
    if (own == step % world().size()) {
      const at::Tensor input = batch_input(step, own).requires_grad_();
      const auto slope = torch::autograd::grad({ddp(input).sum()}, {input});
      CHECK_TRUE(slope[0].sizes() == input.sizes());
      ddp(input).sum().backward({}, /*retain_graph=*/{}, /*create_graph=*/false, {{input}});
      CHECK_CLOSE(input.grad(), slope[0], 1e-5, 1e-6);
    }
    model->zero_grad();
    toy_loss(ddp, step, own).backward();
    check_gradients(*model, expected_toy_gradients(step));
  }
}

/// A batch that no rank can compute costs nothing of what was accumulated before.
TEST(Passes, AFailedForwardKeepsWhatWasAccumulated) {
  const int own = world().rank();
  for (const bool as_view : {true, false}) {
    Toy model, alone;
    DistributedDataParallel ddp(model, {.gradient_as_bucket_view = as_view});
    toy_loss(ddp, 0, own).backward();
    model->zero_grad();
    {
      const auto guard = ddp.no_sync();
      toy_loss(ddp, 1, own).backward();
    }
    const auto expected = average_gradients(
        *alone, [&](int rank) { return toy_loss(alone, 1, rank) + toy_loss(alone, 2, rank); });
    check_throws<std::exception>([&] { ddp(wave({3, 7}, own)); }, "");
    toy_loss(ddp, 2, own).backward();
    check_gradients(*model, expected);
  }
}

struct Bomb : torch::autograd::FunctionPostHook {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& /*outputs*/,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    throw std::runtime_error("boom");
  }
};

TEST(Passes, CollectivesAfterAFailedBackward) {
  const int own = world().rank();
  const auto check_log = [] {
    const at::Tensor one = at::ones({1});
    world().all_reduce(one);
    CHECK_TRUE(one.item<int>() == world().size());
  };
  for (const bool unused : {false, true}) {
    Toy model;
    DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .find_unused_parameters = unused});
    for (const bool on_all : {false, true, false}) {
      model->zero_grad();
      toy_loss(ddp, 0, own).backward();
      check_gradients(*model, expected_toy_gradients(0));
      check_log();
      model->zero_grad();
      const at::Tensor loss = toy_loss(ddp, 1, own);
      const bool fails = on_all || own == 0;
      // After the last layer's gradients, before the first one's.
      if (fails)
        loss.grad_fn()->next_edge(0).function->next_edge(1).function->add_post_hook(std::make_unique<Bomb>());
      check_throws<std::exception>([&] { loss.backward(); },
                                   fails ? "boom" : "pass of rank 0 ended in an exception");
      check_log();
    }
  }
}

struct EarlyBomb : torch::autograd::FunctionPreHook {
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& /*gradients*/) override {
    throw std::runtime_error("boom");
  }
};

/// A backward that fails after its last gradient fails on all ranks and holds nobody up: other collectives work, after the
/// first pass (whose end agrees on an order of the buckets) as after any.
TEST(Passes, AnExceptionAfterTheLastGradientHoldsNobodyUp) {
  const int own = world().rank();
  for (const int failing : {0, world().size() - 1}) {
    Toy model;
    DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      const at::Tensor input = batch_input(0, own).requires_grad_() * 1;
      if (own == failing) input.grad_fn()->add_tensor_pre_hook(std::make_unique<EarlyBomb>());
      const at::Tensor loss = ddp(input).pow(2).sum();
      check_throws<std::exception>([&] { loss.backward(); },
                                   own == failing ? "boom" : "pass of rank " + std::to_string(failing));
      const at::Tensor one = at::ones({1});
      world().all_reduce(one);
      CHECK_TRUE(one.item<int>() == world().size());
      for (const at::Tensor& parameter : model->parameters()) {
        const at::Tensor& gradient = parameter.grad();
        if (gradient.defined()) CHECK_EQUAL(gradient, at::zeros_like(gradient));
      }
    }
    model->zero_grad();
    toy_loss(ddp, 0, own).backward();
    check_gradients(*model, expected_toy_gradients(0));
  }
}

/// What was zeroed after such an exception stays zero, whenever the peers end their pass.
TEST(Passes, GradientsZeroedAfterAnExceptionAfterTheLastGradient) {
  const int own = world().rank();
  for (const bool as_view : {true, false}) {
    Toy model;
    DistributedDataParallel ddp(model, {.gradient_as_bucket_view = as_view});
    for (int step = 1; step < 4; ++step) {
      model->zero_grad(false);
      const at::Tensor input = batch_input(0, own).requires_grad_() * 1;
      if (own == 0) input.grad_fn()->add_tensor_pre_hook(std::make_unique<EarlyBomb>());
      const at::Tensor loss = ddp(input).pow(2).sum();
      if (own == 0) {
        check_throws<std::exception>([&] { loss.backward(); }, "boom");
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // rank 0 zeroes first
        check_throws<Error>([&] { loss.backward(); }, "pass of rank 0 ended in an exception");
      }
      model->zero_grad(false);
      toy_loss(ddp, step, own).backward();
      check_gradients(*model, expected_toy_gradients(step));
    }
  }
}

TEST(Passes, SparseGradientsAfterAnExceptionAfterTheLastGradient) {
  struct Words : torch::nn::Module {
    Words() {
      table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)));
      out = register_module("out", torch::nn::Linear(2, 1));
      fill_with_waves(*this);
    }
    at::Tensor forward(const at::Tensor& ids) { return out->forward(table->forward(ids)); }
    torch::nn::Embedding table{nullptr};
    torch::nn::Linear out{nullptr};
  };
  const int own = world().rank();
  const auto model = std::make_shared<Words>(), alone = std::make_shared<Words>();
  DistributedDataParallel ddp(model);
  const auto loss = [](auto&& call, int rank) { return call(at::arange(2) + rank % 4).square().sum(); };
  const auto expected = average_gradients(*alone, [&](int rank) {
    return loss([&](const at::Tensor& ids) { return alone->forward(ids); }, rank);
  });
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const at::Tensor before = at::ones({1}).requires_grad_() * 1;  // older than the module's nodes: runs last
    const bool fails = own == 0 && step < 2;
    if (fails) before.grad_fn()->add_tensor_pre_hook(std::make_unique<EarlyBomb>());
    const at::Tensor total = loss(ddp, own) + before.sum();
    if (step < 2) {
      check_throws<std::exception>([&] { total.backward(); },
                                   fails ? "boom" : "pass of rank 0 ended in an exception");
    } else {
      total.backward();
      check_gradients(*model, expected);
    }
  }
}

/// Where a peer's pass waits for something that only this rank can do, recover() does it.
TEST(Passes, RecoverBeforeOtherCollectives) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 2; ++step) {
    if (own == 0) {
      check_throws<std::exception>([&] { ddp(wave({3, 7}, own)); }, "");
      ddp.recover();
    } else {
      const at::Tensor loss = toy_loss(ddp, step, own);
      check_throws<Error>([&] { loss.backward(); }, "pass of rank 0 ended in an exception");
    }
    world().barrier();
    model->zero_grad();
    toy_loss(ddp, step, own).backward();
    check_gradients(*model, expected_toy_gradients(step));
  }
}

/// Replicas on threads, each with a wrapper and a group of its own.
TEST(Passes, WrappersOnTwoThreads) {
  const int own = world().rank();
  Toy one, two;
  DistributedDataParallel a(one), b(two);
  const auto train = [own](auto& ddp, Toy& model) {
    for (int step = 0; step < 50; ++step) {
      model->zero_grad();
      toy_loss(ddp, step % 3, own).backward();
    }
  };
  std::exception_ptr error;
  std::thread other([&] {
    try {
      train(b, two);
    } catch (...) {
      error = std::current_exception();
    }
  });
  train(a, one);
  other.join();
  if (error) std::rethrow_exception(error);
  check_gradients(*one, expected_toy_gradients(1));
  check_gradients(*two, expected_toy_gradients(1));
}

}  // namespace
}  // namespace lockstep::testing
