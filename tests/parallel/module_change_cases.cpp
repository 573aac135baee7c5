// What a program makes of its module after wrapping it: followed, or an error on all ranks that names it.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/sgd.h>

#include "lockstep/parallel/hooks/default_hooks.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

struct GrowingImpl : torch::nn::Module {
  explicit GrowingImpl(bool has_buffer = false) {
    body = register_module("body", torch::nn::Linear(4, 4));
    fill_with_waves(*this);
    if (has_buffer) queue = register_buffer("queue", at::zeros({2}));
  }
  void grow() {
    head = register_module("head", torch::nn::Linear(4, 4));
    extra = register_parameter("extra", at::zeros({4}));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = body->forward(x);
    return head ? head->forward(y) + extra : y;
  }
  torch::nn::Linear body{nullptr}, head{nullptr};
  at::Tensor extra, queue;
};
TORCH_MODULE(Growing);
constexpr bool kWithBuffer = true;

at::Tensor change_rows(int step, int rank) { return wave({5, 4}, 30 * step + 7 * rank + 1); }

template <class Module>
void check_zero_gradients(const Module& module) {
  for (const auto& item : module->named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    if (item.key().starts_with("body"))
      CHECK_TRUE(!gradient.defined() || gradient.abs().max().item().toDouble() == 0);
  }
}

/// Which ranks change their module: all, or one of them.
std::vector<int> changing() { return {-1, 0, world().size() - 1}; }
std::string on_ranks(int rank) {
  std::string all;
  for (int r = 0; r < world().size(); ++r) all += (r > 0 ? ", " : "") + std::to_string(r);
  return "on rank " + (rank < 0 ? all : std::to_string(rank)) + " ";
}

std::vector<DistributedDataParallelOptions> kinds_of_options() {
  return {{},
          {.bucket_cap_mb = kTiny},
          {.find_unused_parameters = true},
          {.gradient_as_bucket_view = false},
          {.static_graph = true}};
}

TEST(ModuleChanges, AParameterRegisteredLaterIsNamed) {
  const int own = world().rank();
  for (const int rank : changing()) {
    for (const auto& options : kinds_of_options()) {
      for (const int passes_before : {0, 1, 3}) {
        Growing model;
        DistributedDataParallel ddp(model, options);
        for (int step = 0; step < passes_before; ++step)
          ddp(change_rows(step, own)).square().sum().backward();
        if (rank < 0 || rank == own) model->grow();
        for (int step = 0; step < 2; ++step) {
          {
            const auto guard = ddp.no_sync();
            ddp(change_rows(9, own)).square().sum().backward();
          }
          check_throws<Error>(
              [&] { ddp(change_rows(step, own)).square().sum().backward(); },
              "the module is no longer what was wrapped: " + on_ranks(rank) +
                  "parameter extra, parameter head.weight, parameter head.bias were registered since");
          check_zero_gradients(model);
        }
        // Other collectives work, and the module can be wrapped again.
        world().barrier();
        if (rank >= 0) continue;
        Growing alone;
        alone->grow();
        DistributedDataParallel again(model, options);
        for (int step = 0; step < 3; ++step) {
          const auto wanted = average_gradients(
              *alone, [&](int r) { return alone->forward(change_rows(step, r)).square().sum(); });
          model->zero_grad();
          again(change_rows(step, own)).square().sum().backward();
          check_gradients(*model, wanted);
        }
      }
    }
  }
}

TEST(ModuleChanges, WithAHook) {
  const int own = world().rank();
  Growing model;
  DistributedDataParallel ddp(model);
  ddp.register_comm_hook(std::nullopt, allreduce_hook);
  ddp(change_rows(0, own)).sum().backward();
  if (own == 1) model->grow();
  check_throws<Error>([&] { ddp(change_rows(1, own)).sum().backward(); }, on_ranks(1) + "parameter extra");
}

TEST(ModuleChanges, AReplacedSubmoduleIsNamed) {
  const int own = world().rank();
  for (const int rank : changing()) {
    Growing model;
    DistributedDataParallel ddp(model);
    ddp(change_rows(0, own)).sum().backward();
    if (rank < 0 || rank == own) model->body = model->replace_module("body", torch::nn::Linear(4, 4));
    check_throws<Error>([&] { ddp(change_rows(1, own)).sum().backward(); },
                        on_ranks(rank) + "parameter body.weight, parameter body.bias were registered since");
  }
}

TEST(ModuleChanges, AConvertedParameterIsNamed) {
  const int own = world().rank();
  for (const int rank : changing()) {
    for (const auto& options : kinds_of_options()) {
      Growing model;
      DistributedDataParallel ddp(model, options);
      ddp(change_rows(0, own)).sum().backward();
      const bool changes = rank < 0 || rank == own;
      if (changes) model->to(at::kDouble);
      const auto dtype = changes ? at::kDouble : at::kFloat;
      check_throws<Error>([&] { ddp(change_rows(1, own).to(dtype)).sum().backward(); },
                          on_ranks(rank) +
                              "parameter body.weight is Double [4, 4] now but was Float [4, 4], parameter "
                              "body.bias is Double [4] now but was Float [4]");
      if (changes) model->to(at::kFloat);
      Growing alone;
      const auto wanted =
          average_gradients(*alone, [&](int r) { return alone->forward(change_rows(2, r)).sum(); });
      model->zero_grad();
      ddp(change_rows(2, own)).sum().backward();
      check_gradients(*model, wanted);
    }
  }
}

/// The module's own error says nothing of the cause.
TEST(ModuleChanges, AChangeMakesForwardFail) {
  Growing low;
  DistributedDataParallel in_low(low, {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16}});
  low->grow();
  check_throws<Error>([&] { in_low(change_rows(1, world().rank())); },
                      "parameter extra, parameter head.weight, parameter head.bias were registered since");
  in_low.recover();
  Growing model;
  DistributedDataParallel ddp(model);
  model->to(at::kDouble);
  check_throws<Error>([&] { ddp(change_rows(1, world().rank())); },
                      "parameter body.weight is Double [4, 4] now but was Float [4, 4]");
  ddp.recover();
}

TEST(ModuleChanges, AGrownParameterIsNamed) {
  const int own = world().rank();
  for (const int rank : changing()) {
    Growing model;
    DistributedDataParallel ddp(model);
    ddp(change_rows(0, own)).sum().backward();
    if (rank < 0 || rank == own) {
      model->body->weight.set_data(wave({6, 4}, 3));
      model->body->bias.set_data(wave({6}, 3));
    }
    check_throws<Error>([&] { ddp(change_rows(1, own)).sum().backward(); },
                        on_ranks(rank) + "parameter body.weight is Float [6, 4] now but was Float [4, 4]");
  }
}

/// Another dtype, shape, or one more: rank 0's is what all have before the forward.
TEST(ModuleChanges, BuffersThatAllChangeAreFollowed) {
  const int own = world().rank();
  const std::vector<std::function<at::Tensor(int)>> changes{
      [](int rank) { return at::full({2}, 1.0 / 3 + rank, at::kDouble); },
      [](int rank) { return at::full({5}, 1.0 / 3 + rank, at::kFloat); },
      [](int rank) { return at::full({1}, 7 + rank, at::kLong); },
      [](int rank) {
        return at::full({300, 200}, 1.0 / 3 + rank, at::kFloat);
      },
      [](int rank) { return at::full({}, 1.0 / 3 + rank, at::kBFloat16); }};
  for (const bool is_new : {false, true}) {
    Growing model(kWithBuffer);
    Growing alone(kWithBuffer);
    DistributedDataParallel ddp(model);
    int step = 0;
    for (const auto& change : changes) {
      const std::string name = is_new ? "late" + std::to_string(step) : "queue";
      if (is_new) {
        model->register_buffer(name, change(own));
      } else {
        model->queue.set_data(change(own));
      }
      for (int round = 0; round < 3; ++round) {
        const at::Tensor buffer = model->named_buffers()[name];
        if (round == 2) buffer.fill_(5 + own);
        const at::Tensor sent = round == 2 ? at::full_like(buffer, 5) : change(0);
        const auto wanted = average_gradients(
            *alone, [&](int r) { return alone->forward(change_rows(step, r)).square().sum(); });
        model->zero_grad();
        ddp(change_rows(step, own)).square().sum().backward();
        CHECK_TRUE(buffer.scalar_type() == sent.scalar_type());
        CHECK_EQUAL(buffer, sent);
        check_gradients(*model, wanted);
      }
      ++step;
    }
  }
}

TEST(ModuleChanges, BuffersThatOneRankChangesAreNamed) {
  const int own = world().rank();
  for (const int rank : {0, world().size() - 1}) {
    for (const bool is_new : {false, true}) {
      Growing model(kWithBuffer);
      DistributedDataParallel ddp(model);
      ddp(change_rows(0, own)).sum().backward();
      if (own == rank && is_new) model->register_buffer("late", at::zeros({3}, at::kDouble));
      if (own == rank && !is_new) model->queue.set_data(at::zeros({3}, at::kDouble));
      const std::string name = is_new ? "buffer late [3] Double" : "buffer queue [3] Double";
      check_throws<Error>([&] { ddp(change_rows(1, own)).sum().backward(); }, name);
      check_throws<Error>([&] { ddp(change_rows(1, own)).sum().backward(); }, name);
      // The others follow.
      if (own != rank && is_new) model->register_buffer("late", at::zeros({3}, at::kDouble));
      if (own != rank && !is_new) model->queue.set_data(at::zeros({3}, at::kDouble));
      model->zero_grad();
      ddp(change_rows(2, own)).sum().backward();
      Growing alone;
      check_gradients(
          *model, average_gradients(*alone, [&](int r) { return alone->forward(change_rows(2, r)).sum(); }));
    }
  }
}

/// Without buffers at first nothing is sent, so nobody could say how the buffers are now.
TEST(ModuleChanges, TheFirstBufferOfAModuleIsNamed) {
  const int own = world().rank();
  Growing model;
  DistributedDataParallel ddp(model);
  ddp(change_rows(0, own)).sum().backward();
  model->register_buffer("late", at::full({2}, own));
  check_throws<Error>([&] { ddp(change_rows(1, own)).sum().backward(); },
                      "the module has buffer late [2] Long but had nothing");
  // Each rank's own, if that is what was asked for.
  Growing own_buffers;
  DistributedDataParallel apart(own_buffers, {.forward_sync_buffers = false});
  own_buffers->register_buffer("late", at::full({2}, own));
  apart(change_rows(1, own)).sum().backward();
  CHECK_TRUE(own_buffers->named_buffers()["late"][0].item<int>() == own);
}

TEST(ModuleChanges, ABatchNormWithoutStatisticsIsNoChange) {
  torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(4).track_running_stats(false));
  DistributedDataParallel ddp(norm);
  for (int step = 0; step < 3; ++step) ddp(change_rows(step, world().rank())).square().sum().backward();
}

TEST(ModuleChanges, SyncOfBuffersByItsTwoNames) {
  const int own = world().rank();
  const auto buffer_after = [&](const DistributedDataParallelOptions& options) {
    Growing model(kWithBuffer);
    model->queue.fill_(10 + own);
    DistributedDataParallel ddp(model, options);
    const int at_first = model->queue[0].item<int>();
    model->queue.fill_(20 + own);
    ddp(change_rows(0, own)).sum().backward();
    return std::pair(at_first, model->queue[0].item<int>());
  };
  const std::pair all(10, 20), first(10, 20 + own), none(10 + own, 20 + own);
  CHECK_TRUE(buffer_after({}) == all);
  CHECK_TRUE(buffer_after({.forward_sync_buffers = true}) == all);
  CHECK_TRUE(buffer_after({.forward_sync_buffers = false}) == first);
  CHECK_TRUE(buffer_after({.broadcast_buffers = true}) == all);
  CHECK_TRUE(buffer_after({.broadcast_buffers = false}) == none);
  CHECK_TRUE(buffer_after({.forward_sync_buffers = false, .broadcast_buffers = false}) == first);
  CHECK_TRUE(buffer_after({.forward_sync_buffers = false, .init_sync = false}) == none);
  check_throws<ValueError>([&] { buffer_after({.forward_sync_buffers = true, .broadcast_buffers = false}); },
                           "forward_sync_buffers is true, but broadcast_buffers, its older name, is false");
}

/// The whole call of the wrapper in an activation checkpoint: its forward runs first without gradients, and again inside
/// backward.
struct Again : torch::autograd::Function<Again> {
  using Run = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Run* run,
                            const at::Tensor& /*makes it part of the graph*/) {
    context->save_for_backward({x});
    context->saved_data["run"] = reinterpret_cast<int64_t>(run);
    const at::NoGradGuard no_grad;
    return (*run)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* const run = reinterpret_cast<Run*>(context->saved_data["run"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode enable(true);
    torch::autograd::backward({(*run)(x)}, {gradients[0]});
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

TEST(ModuleChanges, AWholeCallInACheckpointIsAForward) {
  const int own = world().rank();
  auto all_options = kinds_of_options();
  all_options.push_back(
      {.mixed_precision = MixedPrecision{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
  for (const auto& options : all_options) {
    for (int variant = 0; variant < 5; ++variant) {
      // In low precision the new layers, which have full precision, end the first forward, which is this rank's alone.
      if (variant == 3 && options.mixed_precision) continue;
      Growing model(kWithBuffer), alone;
      if (variant == 2) model->body->weight.set_requires_grad(false);
      DistributedDataParallel ddp(model, options);
      if (variant == 1) {
        for (at::Tensor& parameter : model->parameters()) parameter.set_data(parameter.detach().clone());
      }
      if (variant == 2) model->body->weight.set_requires_grad(true);
      if (variant == 3) {
        model->grow();
        alone->grow();
      }
      Again::Run run = [&](const at::Tensor& x) { return ddp(x).to(at::kFloat); };
      for (int step = 0; step < 3; ++step) {
        if (variant == 4) model->queue.fill_(own + step);
        const auto wanted = average_gradients(
            *alone, [&](int r) { return alone->forward(change_rows(step, r)).square().sum(); });
        model->zero_grad();
        const auto pass = [&] {
          Again::apply(change_rows(step, own).requires_grad_(), &run, at::zeros({1}).requires_grad_())
              .square()
              .sum()
              .backward();
        };
        if (variant == 3) {
          check_throws<Error>(pass, on_ranks(-1) + "parameter extra");
          continue;
        }
        pass();
        check_gradients(*model, wanted, options.mixed_precision ? 0.05 : 1e-5);
        if (variant == 4) CHECK_TRUE(model->queue[0].item<int>() == step);
      }
    }
  }
}

/// The rank with the change must not take zeros for a step that went well.
TEST(ModuleChanges, OnOneRankWhileAnotherFails) {
  const int own = world().rank(), changed = world().size() - 1;
  for (const auto& options : kinds_of_options()) {
    Growing model;
    DistributedDataParallel ddp(model, options);
    ddp(change_rows(0, own)).square().sum().backward();
    if (own == changed) model->grow();
    const auto pass = [&] {
      const at::Tensor loss = ddp(change_rows(1, own)).square().sum();
      if (own == 0) throw std::runtime_error("thrown in the loss");
      loss.backward();
    };
    if (own == 0) {
      check_throws<std::runtime_error>(pass, "thrown in the loss");
    } else {
      check_throws<Error>(pass, own != changed
                                    ? "of rank 0 ended in an exception"
                                    : "are zero on all ranks. Besides, the module here is no longer what was "
                                      "wrapped: parameter extra");
      check_zero_gradients(model);
    }
    world().barrier();
  }
}

/// As LBFGS does when each rank gives it the loss of its own batch.
TEST(ModuleChanges, OneRankMakesFewerPasses) {
  ONLY_IF(world().backend_name() == "lockstep");  // on Gloo destroy() waits for the others until the deadline
  for (const bool has_buffer : {false, true}) {
    {
      const int own = world().rank(), size = world().size();
      Growing model(has_buffer);
      DistributedDataParallel ddp(model);
      const auto pass = [&](int number) { ddp(change_rows(number, own)).sum().backward(); };
      // A machine's word that a rank has left may come before the bytes of the last pass, which then fails on another machine.
      const bool is_on_one_machine = size == world().local_world_size();
      const int end_of_machine = own - world().local_rank() + world().local_world_size();
      const int sure = end_of_machine == size ? 3 : 2;
      for (int number = 0; number < sure; ++number) pass(number);
      if (own != size - 1) {
        const auto go_on = [&] {
          for (int number = sure; number < 4; ++number) pass(number);
        };
        check_throws<CommError>(
            go_on, std::string(is_on_one_machine ? "after 3" : "") +
                       " averaged backward passes of this rank: if the other one has ended or does something "
                       "else, the ranks made different numbers of backward passes");
      }
    }
    destroy();
  }
}

}  // namespace
}  // namespace lockstep::testing
