// What users do to a wrapped module that no tutorial shows.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>

#include <torch/csrc/autograd/variable.h>
#include <torch/serialize.h>

#include <optional>
#include <sstream>
#include <thread>

#include "lockstep/parallel/sync_module_states.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

struct OddImpl : torch::nn::Module {
  OddImpl() {
    phase = register_parameter("phase", wave({3, 2}, 1).to(at::kComplexFloat));
    half = register_parameter("half", wave({4}, 2).to(at::kHalf));
    nothing = register_parameter("nothing", at::zeros({0, 3}));
    scalar = register_parameter("scalar", at::full({}, 0.5));
    transposed = register_parameter("transposed", wave({3, 5}, 3).t());
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor z = phase * x.sum();
    return at::real(z * z.conj()).sum() + (half * x.to(at::kHalf)[0]).sum().to(at::kFloat) +
           nothing.sum() * scalar + scalar * x.square().sum() + (transposed * x.sum()).square().sum();
  }
  at::Tensor phase, half, nothing, scalar, transposed;
};
TORCH_MODULE(Odd);

TEST(Robustness, OddParameters) {
  for (const double cap : {kTiny, 25.0}) {
    Odd model, alone;
    DistributedDataParallel ddp(model, {.bucket_cap_mb = cap});
    const auto expected = average_gradients(*alone, [&](int rank) {
      return alone->forward(wave({2, 4}, rank));
    });
    for (int step = 0; step < 3; ++step) {
      model->zero_grad(step % 2 == 0);
      ddp(wave({2, 4}, world().rank())).backward();
      const auto parameters = model->parameters();
      for (size_t p = 0; p < expected.size(); ++p) {
        CHECK_TRUE(parameters[p].grad().sizes() == expected[p].sizes());
        CHECK_CLOSE(parameters[p].grad(), expected[p], 2e-3, 1e-4);
      }
    }
  }
}

TEST(Robustness, AWrapperThatIsGoneBeforeBackward) {
  const int own = world().rank();
  Toy model;
  at::mse_loss(DistributedDataParallel(model)(batch_input(0, own)), batch_target(0, own)).backward();
  check_gradients(*model, expected_toy_gradients(0));
  const at::Tensor kept = DistributedDataParallel(model)(batch_input(1, own));
  // The module alone, on one rank, while a graph still knows the wrapper.
  if (own == 0) model->forward(batch_input(0, 0)).sum().backward();
  model->zero_grad();
  at::mse_loss(kept, batch_target(1, own)).backward();
  check_gradients(*model, expected_toy_gradients(1));
}

struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    inner = register_module("inner", Toy());
    last = register_module("last", torch::nn::Linear(5, 5));
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(inner_ddp ? (*inner_ddp)(x) : inner->forward(x));
  }
  Toy inner{nullptr};
  torch::nn::Linear last{nullptr};
  std::optional<DistributedDataParallel<Toy>> inner_ddp;
};
TORCH_MODULE(Outer);

TEST(Robustness, AWrapperInsideAWrapper) {
  const int own = world().rank();
  Outer model, alone;
  const auto expected = average_gradients(*alone, [&](int rank) { return toy_loss(alone, 0, rank); });
  model->inner_ddp.emplace(model->inner);
  {
    DistributedDataParallel ddp(model);
    check_throws<Error>([&] { toy_loss(ddp, 0, own).backward(); }, "belongs to two wrapped modules");
    model->inner_ddp.reset();
    model->zero_grad();
    toy_loss(ddp, 0, own).backward();
    check_gradients(*model, expected);
  }
  // Shared out between the two they get along.
  model->inner_ddp.emplace(model->inner);
  DistributedDataParallel ddp(model,
                              {.parameters_and_buffers_to_ignore = {"inner.net1.weight", "inner.net1.bias",
                                                                    "inner.net2.weight", "inner.net2.bias"}});
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    toy_loss(ddp, 0, own).backward();
    check_gradients(*model, expected);
  }
}

/// A rank that catches the error of its own reader takes part in the same step with its next batch.
TEST(Robustness, AReaderThatFailsTakesItsNextBatch) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  int next = 0;
  const auto read = [&] {
    if (next++ == 1 && own == 0) throw std::runtime_error("a damaged sample");
    return next - 1;
  };
  const auto batch_of = [](int step, int rank) { return rank == 0 && step >= 1 ? step + 1 : step; };
  Toy alone;
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    int batch = 0;
    try {
      batch = read();
    } catch (const std::runtime_error&) {
      batch = read();
    }
    CHECK_TRUE(batch == batch_of(step, own));
    toy_loss(ddp, batch, own).backward();
    check_gradients(*model, average_gradients(*alone, [&](int rank) {
      return toy_loss(alone, batch_of(step, rank), rank);
    }));
  }
}

TEST(Robustness, AModuleWrappedTwiceInOneBackward) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel one(model), two(model);
  const auto both = [&] { (one(batch_input(0, own)).sum() + two(batch_input(1, own)).sum()).backward(); };
  check_throws<Error>(both, "belongs to two wrapped modules that take part in one backward pass");
}

/// Two wrapped modules, one fed by the other, as a generator and its judge.
TEST(Robustness, OneModelAfterAnotherInOneBackward) {
  const int own = world().rank();
  Toy first, first_alone;
  torch::nn::Linear second(5, 5), second_alone(5, 5);
  fill_with_waves(*second);
  fill_with_waves(*second_alone);
  const auto loss = [](auto&& one, auto&& two, int rank) {
    return at::mse_loss(two(one(batch_input(0, rank))), batch_target(0, rank));
  };
  const auto alone = [&](int rank) { return loss(first_alone, second_alone, rank); };
  const auto expected_first = average_gradients(*first_alone, alone);
  const auto expected_second = average_gradients(*second_alone, alone);
  DistributedDataParallel one(first);
  DistributedDataParallel two(second);
  for (int step = 0; step < 3; ++step) {
    first->zero_grad();
    second->zero_grad();
    loss(one, two, own).backward();
    check_gradients(*first, expected_first);
    check_gradients(*second, expected_second);
  }
}

TEST(Robustness, ParametersThatAreReplaced) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 2; ++step) {
    // As loading does it: the same parameters with other memory.
    for (at::Tensor& parameter : model->parameters()) parameter.set_data(parameter.detach().clone());
    model->zero_grad();
    toy_loss(ddp, step, own).backward();
    check_gradients(*model, expected_toy_gradients(step));
  }
  model->net2->bias.set_data(at::zeros({1}));
  check_throws<Error>([&] { toy_loss(ddp, 0, own).backward(); },
                      "net2.bias is Float [1] now but was Float [5]");
}

/// Loading may give parameters new accumulation nodes, which know nothing of the wrapper.
TEST(Robustness, AModuleLoadedAfterWrapping) {
  const int own = world().rank();
  for (const bool unused : {false, true}) {
    for (const bool static_graph : {false, true}) {
      Toy model;
      DistributedDataParallel ddp(model, {.find_unused_parameters = unused, .static_graph = static_graph});
      for (int step = 0; step < 4; ++step) {
        if (step != 1) {
          const auto before = torch::autograd::impl::try_get_grad_accumulator(model->net2->weight);
          std::stringstream file;
          torch::save(model, file);
          torch::load(model, file);
          // Or this tests nothing.
          CHECK_TRUE(torch::autograd::impl::try_get_grad_accumulator(model->net2->weight) != before);
        }
        model->zero_grad();
        toy_loss(ddp, step, own).backward();
        check_gradients(*model, expected_toy_gradients(step));
      }
    }
  }
}

TEST(Robustness, NestedNoSync) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  {
    const auto outer = ddp.no_sync();
    try {
      [[maybe_unused]] const auto inner = ddp.no_sync();
      throw std::runtime_error("leaves the inner one");
    } catch (const std::runtime_error&) {
    }
    // Still local: one rank may do it alone.
    if (own == 0) toy_loss(ddp, 0, own).backward();
  }
  model->zero_grad();
  toy_loss(ddp, 1, own).backward();
  check_gradients(*model, expected_toy_gradients(1));
}

TEST(Robustness, BackwardInAnotherThread) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const at::Tensor loss = toy_loss(ddp, step, own);
    std::thread([&] { loss.backward(); }).join();
    check_gradients(*model, expected_toy_gradients(step));
  }
}

TEST(Robustness, OutputsChangedInPlace) {
  const int own = world().rank();
  Toy model;
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    at::Tensor output = ddp(batch_input(step, own));
    output.mul_(2).div_(2);
    at::mse_loss(output, batch_target(step, own)).backward();
    check_gradients(*model, expected_toy_gradients(step));
  }
}

struct MirrorImpl : torch::nn::Module {
  MirrorImpl() { weight = register_parameter("weight", wave({3}, 1)); }
  std::vector<at::Tensor> forward(const at::Tensor& x) { return {x, weight, at::Tensor()}; }
  at::Tensor weight;
};
TORCH_MODULE(Mirror);

/// A forward that hands out its input and its parameter themselves, and an undefined tensor.
TEST(Robustness, LeavesAsOutputs) {
  const int own = world().rank();
  Mirror model;
  DistributedDataParallel ddp(model);
  double factors = 0;
  for (int rank = 0; rank < world().size(); ++rank) factors += rank + 1;
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const auto outputs = ddp(at::full({3}, own + 1.0));
    (outputs[0] * outputs[1]).sum().backward();
    CHECK_CLOSE(model->weight.grad(), at::full({3}, factors / world().size()), 1e-5, 1.0000000000000002e-6);
  }
}

/// A row of numbers, seen as three rows: in a buffer, a frozen parameter or a trained one.
struct ExpandedImpl : torch::nn::Module {
  enum class Kind { buffer, frozen, trained };
  ExpandedImpl(Kind kind, int64_t width, bool is_expanded = true) {
    layer = register_module("layer", torch::nn::Linear(4, 4));
    const at::Tensor row = wave({width}, 5).expand({3, width});
    const at::Tensor values = is_expanded ? row : row.clone();
    rows = kind == Kind::buffer ? register_buffer("rows", values)
                                : register_parameter("rows", values, kind == Kind::trained);
    for (at::Tensor& parameter : layer->parameters()) {
      const at::NoGradGuard no_grad;
      parameter.copy_(wave(parameter.sizes(), 1));
    }
  }
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x) * rows.abs().mean(); }
  torch::nn::Linear layer{nullptr};
  at::Tensor rows;
};
TORCH_MODULE(Expanded);

// Which cannot be written: one error, with the name, on all ranks.
TEST(Robustness, ElementsThatShareMemory) {
  using Kind = ExpandedImpl::Kind;
  const int own = world().rank();
  for (const int64_t width : {4, 100000}) {
    for (const Kind kind : {Kind::buffer, Kind::frozen, Kind::trained}) {
      const std::string name = kind == Kind::buffer ? "buffer rows" : "parameter rows";
      const std::string shape = " has shape [3, " + std::to_string(width) + "] and strides [0, 1]";
      Expanded model(kind, width);
      check_throws<ValueError>([&] { DistributedDataParallel ddp(model); },
                               "DistributedDataParallel: " + name + shape);
      check_throws<ValueError>([&] { sync_module_states(*model); }, "sync_module_states: " + name + shape);
      // On one rank alone, the first or the last.
      for (const int rank : {0, world().size() - 1}) {
        Expanded other(kind, width, own == rank);
        check_throws<Error>([&] { DistributedDataParallel ddp(other); }, "with elements that share memory");
        check_throws<Error>([&] { sync_module_states(*other); }, "with elements that share memory");
      }
      const auto trains = [&](Expanded module, const DistributedDataParallelOptions& options) {
        Expanded alone(kind, width);
        DistributedDataParallel ddp(module, options);
        ddp(wave({2, 4}, own)).sum().backward();
        const auto expected = average_gradients(*alone->layer, [&](int rank) {
          return alone->forward(wave({2, 4}, rank)).sum();
        });
        for (size_t p = 0; p < expected.size(); ++p) {
          CHECK_CLOSE(module->layer->parameters()[p].grad(), expected[p], 1e-4, 1e-5);
        }
      };
      trains(Expanded(kind, width), {.parameters_and_buffers_to_ignore = {"rows"}});
      trains(Expanded(kind, width, false), {});
      if (kind == Kind::buffer) trains(model, {.broadcast_buffers = false, .init_sync = false});
      if (kind == Kind::frozen) trains(model, {.init_sync = false});
    }
  }
  // An identity that expand() has made is written by nobody.
  Expanded one_row(Kind::buffer, 1, false);
  one_row->rows.set_data(wave({1, 4}, 2).expand({1, 4}));
  DistributedDataParallel ddp(one_row);
}

}  // namespace
}  // namespace lockstep::testing
