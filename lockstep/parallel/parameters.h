// A module's parameters, each tensor once.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// The parameters of `module` (without `recurse`: its own, not those of its submodules), each tensor once, in
/// the order of first registration, as Python's Module.parameters() has them. LibTorch's
/// torch::nn::Module::parameters() lists a tied tensor, or one of a module that is registered twice, once per
/// name, and LibTorch's optimizers step it once per listing. Two are the same if they have the same
/// TensorImpl. Thread-safe as long as nobody registers parameters.
std::vector<at::Tensor> parameters(const torch::nn::Module& module, bool recurse = true);

namespace detail {

/// parameters() of `*module`; ValueError for null.
std::vector<at::Tensor> parameters_of(const torch::nn::Module* module, bool recurse);

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;
/// What named_parameters() has, each tensor once, under its first name.
NamedParameters named_parameters_once(const torch::nn::Module& module);

/// A tensor that has several names in named_parameters(), at least two.
using TiedNames = std::vector<std::string>;
/// In the order of the first names.
std::vector<TiedNames> find_tied_parameters(const torch::nn::Module& module);

/// `tensors` without those that are listed before.
std::vector<at::Tensor> each_tensor_once(const std::vector<at::Tensor>& tensors);

/// Module holders, AnyModule, shared pointers to subclasses of Module.
template <class M>
concept wraps_module = std::is_convertible_v<M, std::shared_ptr<torch::nn::Module>> ||
    requires(const M& module) {
  { module.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};

template <class M>
const torch::nn::Module* pointer_to_module(const M& module) {
  if constexpr (requires { module.is_empty(); }) {  // holders
    if (module.is_empty()) return nullptr;
  }
  if constexpr (std::is_convertible_v<const M&, const torch::nn::Module*>) {
    return module;
  } else if constexpr (requires { module.ptr(); }) {
    return module.ptr().get();
  } else if constexpr (requires { module.get(); }) {
    return module.get();
  } else {
    return pointer_to_module(module.module());
  }
}

}  // namespace detail

/// Accepts a module holder, a pointer to a module (std::shared_ptr, std::unique_ptr or a plain one),
/// torch::nn::AnyModule or DistributedDataParallel. Throws ValueError for a null pointer.
///
///     torch::nn::Linear model(4, 2);
///     lockstep::FusedAdamW optimizer(lockstep::parameters(model), torch::optim::AdamWOptions(1e-3));
template <class M>
requires(!std::is_base_of_v<torch::nn::Module, M>) std::vector<at::Tensor> parameters(const M& module,
                                                                                      bool recurse = true) {
  return detail::parameters_of(detail::pointer_to_module(module), recurse);
}

}  // namespace lockstep
