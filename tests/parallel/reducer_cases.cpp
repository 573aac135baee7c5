// What the reducer does in the situations that users get into.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

#include <chrono>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// Registered in the order in which backward reaches them: the plan made from the reverse is the wrong way
/// round.
struct BackwardsImpl : torch::nn::Module {
  BackwardsImpl() {
    last = register_module("last", torch::nn::Linear(4, 2));
    first = register_module("first", torch::nn::Linear(4, 4));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(first->forward(x).relu()); }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(Backwards);

TEST(Reducer, BucketsAreRebuiltInReadyOrder) {
  Backwards model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  const auto loss = [](auto&& call, int rank) { return call(wave({6, 4}, rank)).square().sum(); };
  loss(ddp, world().rank()).backward();
  CHECK_TRUE(!ddp.logging_data().has_rebuilt_buckets);
  // What the gradients hold survives the move.
  loss(ddp, world().rank()).backward();
  const DDPLoggingData data = ddp.logging_data();
  CHECK_TRUE(data.has_rebuilt_buckets);
  CHECK_TRUE(data.iteration == 2);
  CHECK_TRUE(data.bucket_sizes.size() == 4);
  CHECK_TRUE(data.rebuilt_bucket_sizes.size() == 4);
  CHECK_TRUE(data.grad_ready_order.size() == 4);
  CHECK_TRUE(data.grad_ready_order[0].starts_with("last."));
  CHECK_TRUE(data.grad_ready_order[3].starts_with("first."));
  CHECK_TRUE(data.forward_compute_time > 0);
  CHECK_TRUE(data.backward_compute_time > 0);
  CHECK_TRUE(data.backward_comm_time > 0);
  // Buckets left while backward ran.
  CHECK_TRUE(data.backward_compute_comm_overlap_time > 0);
  CHECK_TRUE(data.backward_compute_comm_overlap_time <= data.backward_compute_time);
  Backwards alone;
  auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, rank); });
  for (at::Tensor& gradient : expected) gradient *= 2;
  check_gradients(*model, expected);
  // Once only.
  const auto sizes = ddp.logging_data().rebuilt_bucket_sizes;
  loss(ddp, world().rank()).backward();
  CHECK_TRUE(ddp.logging_data().rebuilt_bucket_sizes == sizes);
}

/// Two branches whose order in backward is another one on odd ranks.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    a = register_module("a", torch::nn::Linear(4, 4));
    b = register_module("b", torch::nn::Linear(4, 4));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x, bool swap) {
    at::Tensor left, right;
    if (swap) right = b->forward(x);
    left = a->forward(x);
    if (!swap) right = b->forward(x);
    return left * right;
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
};
TORCH_MODULE(Branches);

TEST(Reducer, RanksAgreeOnTheOrder) {
  Branches model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    ddp(wave({6, 4}, world().rank()), world().rank() % 2 == 1).sum().backward();
  }
  std::string order;
  for (const std::string& name : ddp.logging_data().grad_ready_order) order += name + " ";
  for (const std::string& theirs : world().all_gather_bytes(order)) CHECK_TRUE(theirs == order);
  Branches alone;
  check_gradients(*model, average_gradients(*alone, [&](int rank) {
    return alone->forward(wave({6, 4}, rank), rank % 2 == 1).sum();
  }));
}

/// What a rank saw in a pass that was refused is nobody else's order.
TEST(Reducer, ARefusedFirstPassLeavesNoOrder) {
  struct Unfinished : BranchesImpl {
    Unfinished() { extra = register_module("extra", torch::nn::Linear(4, 4)); }
    torch::nn::Linear extra{nullptr};
  };
  const int own = world().rank();
  const auto loss = [](auto&& call, int rank) { return call(wave({6, 4}, rank), rank % 2 == 1).sum(); };
  const auto model = std::make_shared<Unfinished>();
  DistributedDataParallel ddp(model);
  check_throws<Error>([&] { loss(ddp, own).backward(); }, "no gradient for extra.weight");
  for (at::Tensor& parameter : model->extra->parameters()) parameter.set_requires_grad(false);
  Branches alone;
  const auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, rank); });
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    loss(ddp, own).backward();
    for (size_t p = 0; p < 4; ++p)
      CHECK_CLOSE(model->parameters()[p].grad(), expected[p], 1e-5, 1.0000000000000002e-6);
  }
}

/// Activation checkpointing as torch.utils.checkpoint(use_reentrant=True): backward runs the function again
/// and calls backward on it.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  using Run = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Run run) {
    context->save_for_backward({x});
    context->saved_data["run"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(std::move(run)));
    const at::NoGradGuard no_grad;
    return dynamic_cast<Held&>(*context->saved_data["run"].toCapsule()).run(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode enable(true);
    const at::Tensor y = dynamic_cast<Held&>(*context->saved_data["run"].toCapsule()).run(x);
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
  struct Held : torch::CustomClassHolder {
    explicit Held(Run r) : run(std::move(r)) {}
    Run run;
  };
};

/// Runs the same layer in two checkpoints, so that its parameters get two gradients in one backward pass,
/// unless `shared` is off.
struct CheckpointedImpl : torch::nn::Module {
  explicit CheckpointedImpl(bool shared, bool plain = false) : is_plain(plain) {
    in = register_module("in", torch::nn::Linear(4, 4));
    one = register_module("one", torch::nn::Linear(4, 4));
    if (!shared) two = register_module("two", torch::nn::Linear(4, 4));
    out = register_module("out", torch::nn::Linear(4, 2));
    fill_with_waves(*this);
    if (shared) two = one;
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = in->forward(x);
    for (const auto& layer : {one, two}) {
      const Checkpoint::Run run = [layer = layer](const at::Tensor& v) {
        return ops::linear(v, layer->weight, layer->bias).tanh();
      };
      h = is_plain ? run(h) : Checkpoint::apply(h, run);
    }
    return out->forward(h);
  }
  bool is_plain;
  torch::nn::Linear in{nullptr}, one{nullptr}, two{nullptr}, out{nullptr};
};
TORCH_MODULE(Checkpointed);

TEST(Reducer, ReentrantCheckpoints) {
  const int own = world().rank();
  const auto loss = [](auto&& call, int rank) { return call(wave({6, 4}, rank)).square().sum(); };
  {
    Checkpointed model(false), alone(false, true);
    DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
    const auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, rank); });
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      loss(ddp, own).backward();
      check_gradients(*model, expected);
    }
  }
  Checkpointed model(true), alone(true, true);
  {
    DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
    check_throws<Error>([&] { loss(ddp, own).backward(); }, "got gradient number 2 in one backward pass");
    check_throws<Error>([&] { loss(ddp, own).backward(); }, "set static_graph");
    ddp(wave({6, 4}, 0));
  }
  model->zero_grad();
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .static_graph = true});
  const auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, rank); });
  for (int step = 0; step < 4; ++step) {
    model->zero_grad();
    loss(ddp, own).backward();
    check_gradients(*model, expected);
  }
}

/// Hands on its input; backward throws where `fails`.
struct Fragile : torch::autograd::Function<Fragile> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool fails) {
    context->saved_data["fails"] = fails;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["fails"].toBool()) throw std::runtime_error("broken on purpose");
    return {gradients[0], at::Tensor()};
  }
};

struct FragileToyImpl : ToyImpl {
  at::Tensor forward(const at::Tensor& x, bool fails = false) {
    return net2->forward(Fragile::apply(net1->forward(x), fails).relu());
  }
};
TORCH_MODULE(FragileToy);

/// `who`: which ranks fail. In every step but the last; the last step's gradients are right.
void fail_in_backward(const std::function<bool(int)>& who, bool set_to_none, bool as_view) {
  const int own = world().rank();
  FragileToy model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny, .gradient_as_bucket_view = as_view});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto backward = [&](int step, bool fails) {
    optimizer.zero_grad(set_to_none);
    at::mse_loss(ddp(batch_input(step, own), fails), batch_target(step, own)).backward();
  };
  for (int step = 0; step < 3; ++step) {
    if (who(own)) {
      check_throws<std::runtime_error>([&] { backward(step, true); }, "broken on purpose");
    } else {
      check_throws<Error>([&] { backward(step, false); }, "ended in an exception");
    }
    if (step == 1) continue;  // two failures on end, too
    backward(step + 10, false);
    check_gradients(*model, expected_toy_gradients(step + 10));
  }
}

TEST(Reducer, AnExceptionInBackwardOnOneRank) {
  for (const bool set_to_none : {true, false}) {
    for (const bool as_view : {true, false}) {
      fail_in_backward([](int rank) { return rank == 0; }, set_to_none, as_view);
      fail_in_backward([](int rank) { return rank == 1; }, set_to_none, as_view);
    }
  }
}

TEST(Reducer, AnExceptionInBackwardOnAllRanks) {
  for (const bool set_to_none : {true, false}) {
    fail_in_backward([](int /*rank*/) { return true; }, set_to_none, true);
  }
}

/// An exception in forward on one rank reaches the others, and training goes on.
TEST(Reducer, AnExceptionInForward) {
  struct Picky : ToyImpl {
    at::Tensor forward(const at::Tensor& x, bool fails) {
      if (fails) throw std::runtime_error("bad sample");
      return ToyImpl::forward(x);
    }
  };
  const int own = world().rank();
  const auto model = std::make_shared<Picky>();
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  const auto backward = [&](int step, bool fails) {
    model->zero_grad();
    at::mse_loss(ddp(batch_input(step, own), fails), batch_target(step, own)).backward();
  };
  for (int step = 0; step < 3; ++step) {
    if (own == step % world().size()) {
      check_throws<std::runtime_error>([&] { backward(step, true); }, "bad sample");
    } else {
      check_throws<Error>([&] { backward(step, false); }, "ended in an exception");
    }
    backward(step, false);
    check_gradients(*model, expected_toy_gradients(step));
    check_throws<std::runtime_error>([&] { backward(step, true); }, "bad sample");  // on all ranks
  }
  backward(7, false);
  check_gradients(*model, expected_toy_gradients(7));
}

struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    layer = register_module("layer", torch::nn::Linear(4, 4));
    again = register_module("again", layer);  // the same module under a second name
    tied = register_module("tied", std::make_shared<TiedImpl>(4, 4));
    tied->weight = layer->weight;
    tied->parameters_.erase("weight");
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = x;
    for (int i = 0; i < 3; ++i) h = ops::linear(h, layer->weight, layer->bias).tanh();
    return tied->forward(again->forward(h));
  }
  struct TiedImpl : torch::nn::LinearImpl {
    using torch::nn::LinearImpl::LinearImpl;
    using torch::nn::LinearImpl::parameters_;
  };
  torch::nn::Linear layer{nullptr}, again{nullptr};
  std::shared_ptr<TiedImpl> tied;
};
TORCH_MODULE(Shared);

TEST(Reducer, SharedModulesAndTiedParameters) {
  Shared model, alone;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  const auto expected = average_gradients(*alone, [&](int rank) {
    return alone->forward(wave({6, 4}, rank)).sum();
  });
  CHECK_TRUE(ddp.logging_data().num_parameter_tensors == 3);
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    ddp(wave({6, 4}, world().rank())).sum().backward();
    check_gradients(*model, expected);
  }
}

TEST(Reducer, SeveralForwardsAndOneBackward) {
  const int own = world().rank();
  Toy model, alone;
  DistributedDataParallel ddp(model);
  const auto loss = [](auto&& call, int rank) {
    return (call(batch_input(0, rank)) * call(batch_input(1, rank))).sum();
  };
  const auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, rank); });
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    loss(ddp, own).backward();
    check_gradients(*model, expected);
  }
}

TEST(Reducer, TwoBackwardsAfterOneForward) {
  const int own = world().rank();
  Toy model, alone;
  DistributedDataParallel ddp(model);
  const auto losses = [](const at::Tensor& y) { return std::pair(y.sum(), y.square().sum()); };
  const auto expected = average_gradients(*alone, [&](int rank) {
    const auto [first, second] = losses(alone->forward(batch_input(0, rank)));
    return first + second;
  });
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const auto [first, second] = losses(ddp(batch_input(0, own)));
    first.backward({}, /*retain_graph=*/true);
    second.backward();
    check_gradients(*model, expected);
  }
}

TEST(Reducer, FrozenAndFreedParameters) {
  const int own = world().rank();
  for (const bool as_view : {true, false}) {
    Toy model, alone;
    model->net1->weight.set_requires_grad(false);  // from the start
    DistributedDataParallel ddp(model, {.gradient_as_bucket_view = as_view});
    const auto compare = [&](int step) {
      for (size_t p = 0; p < 4; ++p) {
        alone->parameters()[p].set_requires_grad(model->parameters()[p].requires_grad());
      }
      const auto expected = average_gradients(*alone, [&](int rank) { return toy_loss(alone, step, rank); });
      toy_loss(ddp, step, own).backward();
      for (size_t p = 0; p < 4; ++p) {
        if (!model->parameters()[p].requires_grad()) continue;
        CHECK_CLOSE(model->parameters()[p].grad(), expected[p], 1e-5, 1.0000000000000002e-6);
      }
      alone->zero_grad();
    };
    compare(0);
    model->zero_grad();
    model->net1->weight.set_requires_grad(true);
    compare(1);
    // A parameter that is frozen keeps the gradient that it has.
    const at::Tensor kept = model->net2->bias.grad().clone();
    for (at::Tensor& parameter : model->parameters()) {
      if (!parameter.is_same(model->net2->bias)) parameter.mutable_grad().reset();
    }
    model->net2->bias.set_requires_grad(false);
    compare(2);
    CHECK_EQUAL(model->net2->bias.grad(), kept);
    model->net2->bias.set_requires_grad(true);
    model->zero_grad();
    compare(3);
  }
}

TEST(Reducer, FreezingOnOneRankIsAnError) {
  ONLY_IF(world().backend_name() == "lockstep");  // Gloo compares no calls
  Toy model;
  DistributedDataParallel ddp(model);
  toy_loss(ddp, 0, world().rank()).backward();
  model->net2->bias.set_requires_grad(world().rank() == 0);
  // The rank that did it says which; for the others its call is another than theirs.
  const std::string expected = world().rank() == 0 ? "rank" : "requires_grad of net2.bias changed on rank";
  check_throws<MismatchError>([&] { toy_loss(ddp, 1, world().rank()).backward(); }, expected);
  destroy();
}

/// Gloo compares nothing: the calls of the ranks never meet.
TEST(Reducer, FreezingOnOneRankEndsAtGloosDeadline) {
  ONLY_IF(world().backend_name() == "gloo");
  std::vector<int> everyone;
  for (int rank = 0; rank < world().size(); ++rank) everyone.push_back(rank);
  Toy model;
  DistributedDataParallel ddp(
      model, {.process_group = world().new_group(everyone, {.timeout = std::chrono::seconds(2)})});
  toy_loss(ddp, 0, world().rank()).backward();
  model->net2->bias.set_requires_grad(world().rank() == 0);
  check_throws<CommError>([&] { toy_loss(ddp, 1, world().rank()).backward(); }, "");
  destroy();
}

}  // namespace
}  // namespace lockstep::testing
