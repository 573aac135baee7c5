// Tied weights: one tensor that LibTorch's parameters() lists several times is one parameter.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize.h>

#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/parameters.h"
#include "tests/optim/tied_net.h"

namespace lockstep::testing {
namespace {

using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;

const auto adamw_options = AdamWOptions(0.1).weight_decay(0.2);
const auto sgd_options = SGDOptions(0.1).momentum(0.9).weight_decay(0.2);

bool are_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].is_same(b[i])) return false;
  }
  return true;
}

void expect_error(const std::function<void()>& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "no error with \"" << part << '"';
  } catch (const ValueError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

/// Gradients that differ by step.
void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  double factor = 1;
  for (const at::Tensor& parameter : parameters) {
    parameter.mutable_grad() = at::full_like(parameter, factor++ * (step + 1) * 0.1);
  }
}

TEST(Parameters, AreEachTensorOnceInTheOrderOfRegistration) {
  TiedNet net;
  const std::vector<at::Tensor> expected = {net->embedding->weight, net->hidden->weight, net->hidden->bias,
                                            net->decoder->bias};
  ASSERT_EQ(net->parameters().size(), 5u);
  EXPECT_TRUE(are_same(parameters(net), expected));        // a holder
  EXPECT_TRUE(are_same(parameters(*net), expected));       // the module
  EXPECT_TRUE(are_same(parameters(net.ptr()), expected));  // a pointer to it
  EXPECT_TRUE(are_same(parameters(net.get()), expected));  // a plain pointer
  EXPECT_TRUE(are_same(parameters(torch::nn::AnyModule(net)), expected));
  const std::shared_ptr<torch::nn::Module> base = net.ptr();
  EXPECT_TRUE(are_same(parameters(base), expected));
  EXPECT_TRUE(parameters(net, /*recurse=*/false).empty());
  EXPECT_TRUE(
      are_same(parameters(net->decoder, /*recurse=*/false), {net->embedding->weight, net->decoder->bias}));
  expect_error([] { parameters(std::shared_ptr<torch::nn::Module>()); }, "the pointer to it is null");
}

TEST(Parameters, OfAModuleThatIsRegisteredTwiceAreThereOnce) {
  torch::nn::Linear shared(3, 3), own(3, 3);
  torch::nn::Sequential twice(shared, own, shared);
  ASSERT_EQ(twice->parameters().size(), 6u);
  EXPECT_TRUE(are_same(parameters(twice), {shared->weight, shared->bias, own->weight, own->bias}));
}

/// The weights after some steps by an optimizer that `make` makes of the net.
template <class Make>
std::vector<at::Tensor> weights_after(TiedNet net, const Make& make) {
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters(net)) {
      parameter.copy_(at::arange(parameter.numel(), at::kFloat).view(parameter.sizes()) / 7);
    }
  }
  auto optimizer = make(net);
  for (int step = 0; step < 4; ++step) {
    set_gradients(parameters(net), step);
    optimizer.step();
  }
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : parameters(net)) weights.push_back(parameter.detach().clone());
  return weights;
}

template <class Fused, class Options>
void check_repeated_tensors(const Options& options) {
  const auto expected = weights_after(TiedNet(), [&](TiedNet& n) { return Fused(parameters(n), options); });
  const auto check = [&](const char* what, const auto& make) {
    const auto found = weights_after(TiedNet(), make);
    for (size_t p = 0; p < expected.size(); ++p) EXPECT_TRUE(at::equal(found[p], expected[p])) << what << p;
  };
  check("a list", [&](TiedNet& n) {
    Fused optimizer(n->parameters(), options);
    EXPECT_EQ(optimizer.param_groups()[0].params().size(), 4u);
    return optimizer;
  });
  check("a group", [&](TiedNet& n) { return Fused({OptimizerParamGroup(n->parameters())}, options); });
  check("a group that is added", [&](TiedNet& n) {
    Fused optimizer(std::vector<at::Tensor>{n->hidden->bias}, options);
    auto others = n->parameters();
    std::erase_if(others, [&](const at::Tensor& tensor) { return tensor.is_same(n->hidden->bias); });
    optimizer.add_param_group(OptimizerParamGroup(others));
    EXPECT_EQ(optimizer.param_groups()[1].params().size(), 3u);
    return optimizer;
  });
  check("a list that is changed afterwards", [&](TiedNet& n) {
    Fused optimizer(parameters(n), options);
    optimizer.param_groups()[0].params().push_back(n->decoder->weight);
    return optimizer;
  });
}

TEST(TiedWeights, AreSteppedOnce) {
  check_repeated_tensors<FusedAdamW>(adamw_options);
  check_repeated_tensors<FusedAdamW>(AdamWOptions(adamw_options).amsgrad(true));
  check_repeated_tensors<FusedSGD>(sgd_options);
  check_repeated_tensors<FusedSGD>(SGDOptions(0.1));
}

template <class Fused, class Options>
void check_two_groups(const char* name, const Options& options) {
  const TiedNet net;
  const std::string text =
      std::string(name) +
      ": some parameters appear in more than one parameter group: parameter 1 of group 1 (Float [11, 6]) is "
      "parameter 0 of group 0 too";
  const OptimizerParamGroup first({net->embedding->weight}),
      second({net->decoder->bias, net->decoder->weight});
  expect_error([&] { Fused({first, second}, options); }, text);
  Fused optimizer({first}, options);
  expect_error([&] { optimizer.add_param_group(second); }, text);
  EXPECT_EQ(optimizer.param_groups().size(), 1u);
  // Past the check: LibTorch's own function, as a reference to its base class calls it.
  static_cast<torch::optim::Optimizer&>(optimizer).add_param_group(second);
  set_gradients(parameters(net), 0);
  expect_error([&] { optimizer.step(); }, text);
}

TEST(TiedWeights, InTwoGroupsAreAnError) {
  check_two_groups<FusedAdamW>("FusedAdamW", adamw_options);
  check_two_groups<FusedSGD>("FusedSGD", sgd_options);
}

TEST(TiedWeights, AreClippedOnce) {
  const TiedNet net;
  const auto once = parameters(net);
  const auto gradient = [&] { return net->embedding->weight.grad().clone(); };
  set_gradients(once, 4);
  const double norm = grad_norm(once);
  EXPECT_EQ(grad_norm(net->parameters()), norm);
  EXPECT_EQ(clip_grad_norm_(once, 0.5), norm);
  const at::Tensor expected = gradient();
  set_gradients(once, 4);
  EXPECT_EQ(clip_grad_norm_(net->parameters(), 0.5), norm);
  EXPECT_TRUE(at::equal(gradient(), expected));
  set_gradients(once, 4);
  EXPECT_DOUBLE_EQ(scale_and_clip_grad_norm_(net->parameters(), 2.0, 0.5), 2 * norm);
  EXPECT_TRUE(at::allclose(gradient(), expected));
}

TEST(TiedWeights, HaveOneAverage) {
  const TiedNet net;
  ExponentialMovingAverage average(*net, 0.5);
  for (const double value : {1.0, 3.0}) {
    const at::NoGradGuard no_grad;
    net->embedding->weight.fill_(value);
    average.update();
  }
  const StateDict state = average.state_dict();
  EXPECT_EQ(state.tensors.size(), 4u);
  EXPECT_TRUE(state.tensors.at("embedding.weight").eq(2).all().item<bool>());
  EXPECT_FALSE(state.tensors.contains("decoder.weight"));
  {
    const auto averaged = average.use();
    EXPECT_TRUE(net->decoder->weight.eq(2).all().item<bool>());
  }
  EXPECT_TRUE(net->decoder->weight.eq(3).all().item<bool>());
}

// "norm.weight" takes no weight decay; as "first.weight", the name that comes first, it does.
TEST(TiedWeights, AreInTheGroupOfTheirFirstName) {
  struct Module : torch::nn::Module {
    Module() {
      first = register_module("first", torch::nn::Linear(3, 3));
      register_module("norm", first.ptr());
    }
    torch::nn::Linear first{nullptr};
  };
  const Module module;
  const auto groups = parameter_groups(module, adamw_options, {{.pattern = "first", .learning_rate = 0.3}});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_TRUE(are_same(groups[0].params(), {module.first->weight}));
  EXPECT_TRUE(are_same(groups[1].params(), {module.first->bias}));
  EXPECT_EQ(groups[0].options().get_lr(), 0.3);
  expect_error([&] { parameter_groups(module, adamw_options, {{.pattern = "norm"}}); }, "fits no parameter");
}

/// Takes some steps and saves; whatever `to` is, it goes on with the same state.
template <class From, class To, class Options>
void check_goes_on(const Options& options, bool from_repeats, bool to_repeats, bool by_archive) {
  TiedNet net, other;
  const auto list = [](TiedNet& n, bool repeats) { return repeats ? n->parameters() : parameters(n); };
  From from(list(net, from_repeats), options);
  To to(list(other, to_repeats), options);
  for (int step = 0; step < 3; ++step) {
    set_gradients(parameters(net), step);
    from.step();
  }
  set_gradients(parameters(other), 7);  // a state that must go
  to.step();
  if (by_archive) {
    std::stringstream file;
    torch::save(from, file);
    torch::serialize::InputArchive archive;
    archive.load_from(file);
    detail::read_optimizer(to, archive);
  } else {
    load_optimizer_state_dict(to, {optimizer_state_dict(from)});
  }
  const StateDict expected = optimizer_state_dict(from), found = optimizer_state_dict(to);
  EXPECT_EQ(expected.scalars, found.scalars);
  ASSERT_EQ(expected.tensors.size(), found.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_TRUE(at::equal(tensor, found.tensors.at(name))) << name;
  }
  // Python counts parameters so: the tied one is 0, the last bias 3.
  EXPECT_EQ(expected.scalars.at("param_groups.0.params"), StateDict::Scalar(int64_t{4}));
  EXPECT_TRUE(expected.tensors.lower_bound("state.4") == expected.tensors.end());
  EXPECT_EQ(
      to.param_groups()[0].params().size(),
      list(other, to_repeats && !std::is_same_v<To, FusedAdamW> && !std::is_same_v<To, FusedSGD>).size());
  set_gradients(parameters(other), 1);
  to.step();  // no state is lost, as LibTorch's load() loses that of a tensor which is listed twice
}

TEST(TiedWeights, StateGoesToEveryListOfTheSameTensors) {
  for (const bool from_repeats : {false, true}) {
    for (const bool to_repeats : {false, true}) {
      for (const bool by_archive : {false, true}) {
        check_goes_on<AdamW, FusedAdamW>(adamw_options, from_repeats, to_repeats, by_archive);
        check_goes_on<FusedAdamW, AdamW>(adamw_options, from_repeats, to_repeats, by_archive);
        check_goes_on<AdamW, AdamW>(adamw_options, from_repeats, to_repeats, by_archive);
        check_goes_on<SGD, FusedSGD>(sgd_options, from_repeats, to_repeats, by_archive);
        check_goes_on<FusedSGD, SGD>(sgd_options, from_repeats, to_repeats, by_archive);
      }
    }
  }
}

template <class Fused, class Options>
void check_loading(const Options& options) {
  const at::Tensor a = at::ones({3}).requires_grad_(), b = at::ones({3}).requires_grad_();
  Fused begun({a, b}, options), loaded({a, b}, options), fewer({a}, options);
  a.mutable_grad() = at::ones({3});
  begun.step();
  fewer.step();
  b.mutable_grad() = at::ones({3});
  loaded.step();
  ASSERT_EQ(loaded.state().size(), 2u);
  std::stringstream file;
  torch::save(fewer, file);
  expect_error([&] { torch::load(loaded, file); },
               "group 0 of the saved optimizer has 1 parameters, this one's 2");
  EXPECT_EQ(loaded.state().size(), 2u);  // as it was before
  EXPECT_EQ(loaded.param_groups()[0].params().size(), 2u);
  std::stringstream good;
  torch::save(begun, good);
  torch::load(loaded, good);
  EXPECT_EQ(loaded.state().size(), 1u);  // b's is gone: the file has none
  EXPECT_EQ(loaded.state().count(a.unsafeGetTensorImpl()), 1u);
  std::stringstream broken("no archive");
  EXPECT_THROW(torch::load(loaded, broken), c10::Error);
  EXPECT_EQ(loaded.state().size(), 1u);
}

TEST(FusedOptimizers, LoadingReplacesTheState) {
  check_loading<FusedAdamW>(adamw_options);
  check_loading<FusedSGD>(sgd_options);
}

/// LibTorch's load() moves the state of a tensor that is listed twice, and leaves nothing in its place.
TEST(TiedWeights, AStateThatLoadHasLostIsNamed) {
  TiedNet net;
  AdamW trained(net->parameters(), adamw_options);
  set_gradients(parameters(net), 0);
  trained.step();
  std::stringstream stream;
  torch::save(trained, stream);
  AdamW loaded(net->parameters(), adamw_options);
  torch::load(loaded, stream);
  expect_error([&] { optimizer_state_dict(loaded); }, "(Float [11, 6]) is lost");
  expect_error([&] { detail::optimizer_bytes(loaded); }, "(Float [11, 6]) is lost");
}

TEST(TiedWeights, LbfgsListedOtherwiseIsAnError) {
  const TiedNet net;
  torch::optim::LBFGS listed_twice(net->parameters()), listed_once(parameters(net));
  set_gradients(parameters(net), 0);
  listed_twice.step([&] { return at::ones({}); });
  const std::string bytes = detail::optimizer_bytes(listed_twice);
  expect_error([&] { detail::read_optimizer(listed_once, bytes); }, "has 5 parameters, this one's 4");
}

TEST(TiedWeights, AnEmptyHolderIsAnError) {
  const TiedNet empty{nullptr};
  expect_error([&] { parameters(empty); }, "null");
  expect_error([&] { parameters(torch::nn::AnyModule()); }, "null");
}

}  // namespace
}  // namespace lockstep::testing
