// Gradients that are computed in their buckets.
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/real.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include "lockstep/ops/convolution.h"
#include "lockstep/ops/embedding.h"
#include "lockstep/ops/linear.h"
#include "lockstep/ops/node.h"
#include "lockstep/parallel/autograd_node.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {
namespace {

/// Notes where the gradient lies that an operation's backward hands to its input number `input`: null for
/// none.
class Watch : public torch::autograd::FunctionPostHook {
 public:
  Watch(std::vector<const void*>& places, size_t input) : places_(places), input_(input) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    places_.push_back(outputs[input_].defined() ? outputs[input_].const_data_ptr() : nullptr);
    return outputs;
  }

 private:
  std::vector<const void*>& places_;
  size_t input_;
};

struct InSlotsImpl : torch::nn::Module {
  InSlotsImpl()
      : table(register_parameter("table", at::zeros({20, 18}))),
        convolution(register_module("convolution",
                                    ops::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1).bias(false)))),
        out(register_module("out", torch::nn::Linear(36, 5))) {
    fill_with_waves(*this);
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor rows = watched(ops::embedding(table, ids, 3), 0);
    const at::Tensor image = watched(convolution->forward(rows.view({-1, 2, 3, 3})), 1);
    return watched(watched(ops::linear(image.flatten(1), out->weight, out->bias), 1), 2).square();
  }
  /// Holds the places of the last backward: out.weight, out.bias, convolution.weight, table.
  std::vector<const void*> places;
  at::Tensor table;
  ops::Conv2d convolution;
  torch::nn::Linear out;

 private:
  at::Tensor watched(at::Tensor output, size_t input) {
    if (output.requires_grad()) output.grad_fn()->add_post_hook(std::make_unique<Watch>(places, input));
    return output;
  }
};
TORCH_MODULE(InSlots);

const std::vector<const void*> kInSlots(4, nullptr);

at::Tensor ids_of(int rank) { return at::arange(16) * (rank + 3) % 20; }

at::Tensor loss_of(auto&& call, int rank) { return call(ids_of(rank)).sum(); }

/// The gradient of this rank alone, by parameter.
std::vector<at::Tensor> own_gradients() {
  InSlots alone;
  loss_of(alone, world().rank()).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : alone->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

std::vector<at::Tensor> expected_gradients() {
  InSlots alone;
  return average_gradients(*alone, [&](int rank) { return loss_of(alone, rank); });
}

std::vector<const void*> places_of_gradients(InSlots& model) {
  return {model->out->weight.grad().const_data_ptr(), model->out->bias.grad().const_data_ptr(),
          model->convolution->weight.grad().const_data_ptr(), model->table.grad().const_data_ptr()};
}

TEST(ZeroCopyGradients, GradientsAreComputedInTheBucket) {
  const auto expected = expected_gradients();
  for (const double cap : {kTiny, 25.0}) {
    InSlots model;
    DistributedDataParallel ddp(model, {.bucket_cap_mb = cap});
    for (int step = 0; step < 4; ++step) {
      model->zero_grad();
      model->places.clear();
      loss_of(ddp, world().rank()).backward();
      CHECK_TRUE(model->places == kInSlots);
      check_gradients(*model, expected);
    }
  }
}

/// Parameters that do not lie as the operations compute.
TEST(ZeroCopyGradients, GradientsAreCopiedToASlotOfOtherStrides) {
  const auto expected = expected_gradients();
  InSlots model;
  const auto transposed = [](const at::Tensor& tensor) {
    tensor.set_data(tensor.detach().t().contiguous().t());
  };
  transposed(model->table);
  transposed(model->out->weight);
  model->convolution->weight.set_data(model->convolution->weight.detach().contiguous());
  DistributedDataParallel ddp(model);
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    model->places.clear();
    loss_of(ddp, world().rank()).backward();
    CHECK_TRUE(model->places == kInSlots);
    CHECK_TRUE(model->table.grad().strides() == model->table.strides());
    check_gradients(*model, expected);
  }
}

/// Where a gradient is there already, or may be kept by somebody, it is computed elsewhere.
TEST(ZeroCopyGradients, GradientsThatHaveNoSlot) {
  const auto expected = expected_gradients(), own = own_gradients();
  const int rank = world().rank();
  const auto is_elsewhere = [](InSlots& model) {
    const auto slots = places_of_gradients(model);
    for (size_t i = 0; i < slots.size(); ++i) {
      CHECK_TRUE(model->places[i] != nullptr);
      CHECK_TRUE(model->places[i] != slots[i]);
    }
    model->places.clear();
  };
  const auto doubled = [](std::vector<at::Tensor> gradients) {
    for (at::Tensor& gradient : gradients) gradient = gradient * 2;
    return gradients;
  };
  {
    InSlots model;
    DistributedDataParallel ddp(model);
    loss_of(ddp, rank).backward();
    model->places.clear();
    loss_of(ddp, rank).backward();  // adds
    is_elsewhere(model);
    check_gradients(*model, doubled(expected));
    model->zero_grad();
    {
      const auto guard = ddp.no_sync();
      loss_of(ddp, rank).backward();
      model->places.clear();
    }
    loss_of(ddp, rank).backward();
    is_elsewhere(model);
    check_gradients(*model, doubled(expected));
  }
  {
    InSlots model;
    DistributedDataParallel ddp(model);
    for (int step = 0; step < 3; ++step) {  // the results of grad() are the caller's
      model->zero_grad();
      model->places.clear();
      const at::Tensor loss = loss_of(ddp, rank);
      const auto mine = torch::autograd::grad({loss}, model->parameters(), {}, /*retain_graph=*/true);
      model->places.clear();
      loss.backward();
      CHECK_TRUE(model->places == kInSlots);
      for (size_t p = 0; p < mine.size(); ++p) CHECK_CLOSE(mine[p], own[p], 1e-5, 1.0000000000000002e-6);
      check_gradients(*model, expected);
    }
  }
  {
    InSlots model;
    std::vector<at::Tensor> kept(4);
    DistributedDataParallel ddp(model);
    const std::vector<at::Tensor> watched{model->table, model->convolution->weight, model->out->weight,
                                          model->out->bias};
    for (size_t p = 0; p < watched.size(); ++p) {
      watched[p].register_hook([&kept, p](const at::Tensor& gradient) { kept[p] = gradient; });
    }
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      model->places.clear();
      loss_of(ddp, rank).backward();
      is_elsewhere(model);
      check_gradients(*model, expected);
      const auto named = model->named_parameters();
      for (size_t p = 0; p < watched.size(); ++p) {
        for (size_t q = 0; q < own.size(); ++q) {
          if (named[q].value().is_same(watched[p])) CHECK_CLOSE(kept[p], own[q], 1e-5, 1.0000000000000002e-6);
        }
      }
    }
  }
  {
    InSlots model;
    DistributedDataParallel ddp(model);
    const torch::autograd::DetectAnomalyGuard detects;  // looks at every gradient that is handed on
    loss_of(ddp, rank).backward();
    is_elsewhere(model);
    check_gradients(*model, expected);
  }
  {
    InSlots model;
    DistributedDataParallel ddp(model, {.gradient_as_bucket_view = false});
    std::vector<at::Tensor> before;
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      model->places.clear();
      loss_of(ddp, rank).backward();
      CHECK_TRUE(model->places == places_of_gradients(model));  // autograd's own tensors
      check_gradients(*model, expected);
      for (const at::Tensor& gradient : before) CHECK_TRUE(!gradient.is_alias_of(model->table.grad()));
      before = {model->table.grad()};
    }
  }
  {
    InSlots model;
    DistributedDataParallel ddp(model);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      model->places.clear();
      loss_of(ddp, rank).backward({}, /*retain_graph=*/false, /*create_graph=*/true);
      check_gradients(*model, expected);
    }
  }
}

/// Two uses of each parameter in one forward, and two forwards in one backward.
TEST(ZeroCopyGradients, GradientsOfSeveralUses) {
  const auto loss = [](auto&& call, int rank) { return (call(ids_of(rank)) * call(ids_of(rank + 1))).sum(); };
  InSlots model, alone;
  const auto expected = average_gradients(*alone, [&](int rank) { return loss(alone, rank); });
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    loss(ddp, world().rank()).backward();
    check_gradients(*model, expected, 1e-4);
  }
}

/// A parameter that is used by an operation which knows bucket slots and by one that does not, whichever
/// comes first.
TEST(ZeroCopyGradients, GradientsOfUsesOfTwoKinds) {
  struct TwiceImpl : torch::nn::Module {
    TwiceImpl() : layer(register_module("layer", torch::nn::Linear(4, 4))) { fill_with_waves(*this); }
    at::Tensor forward(const at::Tensor& x, bool ours_first) {
      const auto ours = [&](const at::Tensor& y) { return ops::linear(y, layer->weight, layer->bias); };
      return ours_first ? layer->forward(ours(x).tanh()) : ours(layer->forward(x).tanh());
    }
    torch::nn::Linear layer;
  };
  const auto loss = [](auto&& call, int rank, bool ours_first) {
    return call(at::arange(12, at::kFloat).view({3, 4}) / (rank + 2), ours_first).square().sum();
  };
  for (const bool ours_first : {false, true}) {
    const auto model = std::make_shared<TwiceImpl>(), alone = std::make_shared<TwiceImpl>();
    const auto call = [&](const at::Tensor& x, bool first) { return alone->forward(x, first); };
    const auto expected = average_gradients(*alone, [&](int rank) { return loss(call, rank, ours_first); });
    DistributedDataParallel ddp(model);
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      loss(ddp, world().rank(), ours_first).backward();
      check_gradients(*model, expected);
    }
  }
}

/// Multiplies; its backward hands out a gradient of ones to the weight, or none.
struct SilentBackward : ops::OperationNode {
  bool is_silent = false;
  std::string name() const override { return "SilentBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return {is_silent ? at::Tensor() : at::ones_like(gradients[0])};
  }
};

/// Such a parameter was used: as in Python its average counts this rank's part as zeros.
TEST(ZeroCopyGradients, AnOperationThatHandsOutNoGradient) {
  struct SilentImpl : torch::nn::Module {
    SilentImpl() : weight(register_parameter("weight", at::ones({3}))) {}
    at::Tensor forward(bool is_silent) {
      auto node = make_node<SilentBackward>();
      node->is_silent = is_silent;
      at::Tensor output = weight.detach() * 2;
      ops::set_origin(output, std::move(node), weight);
      return output;
    }
    at::Tensor weight;
  };
  const int rank = world().rank(), ranks = world().size();
  for (const bool view : {true, false}) {
    const auto model = std::make_shared<SilentImpl>();
    DistributedDataParallel ddp(model, {.gradient_as_bucket_view = view});
    for (int step = 0; step < 4; ++step) {
      model->zero_grad();
      ddp(rank == 0 || step == 2).sum().backward();
      const double average = step == 2 ? 0.0 : (ranks - 1.0) / ranks;
      CHECK_CLOSE(model->weight.grad(), at::full({3}, average), 1e-5, 1.0000000000000002e-6);
    }
  }
}

/// Autograd drops what comes for a parameter that was frozen after its forward: it counts as zeros.
TEST(ZeroCopyGradients, AParameterFrozenBeforeItsBackward) {
  for (const bool view : {true, false}) {
    InSlots model;
    DistributedDataParallel ddp(model, {.gradient_as_bucket_view = view});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      const at::Tensor loss = loss_of(ddp, world().rank());
      model->out->weight.requires_grad_(step != 1);
      model->out->bias.requires_grad_(step != 1);
      loss.backward();
      for (const at::Tensor& parameter : {model->out->weight, model->out->bias}) {
        CHECK_TRUE((parameter.grad().abs().max().item<double>() == 0) == (step == 1));
        parameter.requires_grad_(true);
      }
    }
  }
}

/// Whose memory holds the conjugate of the gradient.
TEST(ZeroCopyGradients, AGradientThatIsToBeConjugated) {
  struct ConjugateImpl : torch::nn::Module {
    ConjugateImpl() : weight(register_parameter("weight", at::complex(wave({5}, 1), wave({5}, 2)))) {}
    at::Tensor forward(const at::Tensor& x) { return at::real(weight.conj() * x).sum(); }
    at::Tensor weight;
  };
  const auto input = [](int rank) { return at::complex(wave({5}, rank + 3), wave({5}, rank + 4)); };
  const auto alone = std::make_shared<ConjugateImpl>();
  alone->forward(input(0)).backward();
  CHECK_TRUE(alone->weight.grad().is_conj());  // or this tests nothing
  const auto expected = average_gradients(*alone, [&](int rank) { return alone->forward(input(rank)); });
  for (const bool view : {true, false}) {
    const auto model = std::make_shared<ConjugateImpl>();
    DistributedDataParallel ddp(model, {.gradient_as_bucket_view = view});
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      ddp(input(world().rank())).backward();
      CHECK_CLOSE(model->weight.grad().resolve_conj(), expected[0].resolve_conj(), 1e-5, 1e-6);
    }
  }
}

/// Buckets of a hook have no gaps: a gradient computed at an odd place would be added in another order.
TEST(ZeroCopyGradients, AHookChangesNoBitOfOddSizes) {
  struct OddImpl : torch::nn::Module {
    OddImpl() {
      const std::vector<int64_t> sizes{13, 37, 7, 65, 129, 3};
      for (size_t i = 0; i + 1 < sizes.size(); ++i) {
        layers.push_back(
            register_module("layer" + std::to_string(i), torch::nn::Linear(sizes[i], sizes[i + 1])));
      }
      fill_with_waves(*this);
    }
    at::Tensor forward(at::Tensor x) {
      for (const auto& layer : layers) x = ops::linear(x, layer->weight, layer->bias).tanh();
      return x;
    }
    std::vector<torch::nn::Linear> layers;
  };
  for (const double cap : {kTiny, 0.002, 25.0}) {
    const auto plain = std::make_shared<OddImpl>(), hooked = std::make_shared<OddImpl>();
    DistributedDataParallel ddp(plain), with_hook(hooked, {.bucket_cap_mb = cap});
    with_hook.register_comm_hook(std::nullopt, allreduce_hook);
    for (const int64_t rows : {17, 64, 100}) {
      plain->zero_grad();
      hooked->zero_grad();
      ddp(wave({rows, 13}, world().rank())).square().sum().backward();
      with_hook(wave({rows, 13}, world().rank())).square().sum().backward();
      for (size_t p = 0; p < plain->parameters().size(); ++p) {
        CHECK_EQUAL(plain->parameters()[p].grad(), hooked->parameters()[p].grad());
      }
    }
  }
}

/// The backward of one rank ends between the operation and the accumulation.
TEST(ZeroCopyGradients, AnExceptionAfterAGradientCame) {
  const auto expected = expected_gradients();
  InSlots model;
  DistributedDataParallel ddp(model, {.bucket_cap_mb = kTiny});
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    const at::Tensor loss = loss_of(ddp, world().rank());
    if (step == 1) {
      if (world().rank() == 0) {
        struct Fail : torch::autograd::FunctionPostHook {
          torch::autograd::variable_list operator()(const torch::autograd::variable_list&,
                                                    const torch::autograd::variable_list&) override {
            throw std::runtime_error("no more");
          }
        };
        // The first node below the loss's own that is ours: the linear layer's.
        torch::autograd::Node* node = loss.grad_fn().get();
        while (node->name() != "lockstep::LinearBackward") node = node->next_edge(0).function.get();
        node->add_post_hook(std::make_unique<Fail>());
        check_throws<std::runtime_error>([&] { loss.backward(); }, "no more");
      } else {
        check_throws<Error>([&] { loss.backward(); }, "ended in an exception");
      }
      continue;
    }
    loss.backward();
    check_gradients(*model, expected);
  }
}

}  // namespace
}  // namespace lockstep::testing
