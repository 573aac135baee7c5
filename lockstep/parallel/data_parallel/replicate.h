// Copies of a module for one forward, and their forwards on threads.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel/replica_set.h"
#include "lockstep/parallel/parameters.h"

namespace lockstep {
namespace detail {

/// Backward through a replica's parameter goes on to the module's: the sum over the replicas.
void lead_gradients_back(const torch::nn::Module& module,
                         const std::vector<std::shared_ptr<torch::nn::Module>>& replicas);
/// As ReplicaSet::forward, on threads that end with the call.
void apply_on_threads(int count, const std::function<void(int)>& work);

template <class M>
std::shared_ptr<torch::nn::Module> module_pointer(const M& module) {
  if constexpr (requires { module.ptr(); }) {
    return module.ptr();
  } else {
    return module;
  }
}
/// `module` as the type that its original has.
template <class M>
M as_holder(const std::shared_ptr<torch::nn::Module>& module) {
  if constexpr (requires(const M& holder) { holder.ptr(); }) {
    using Impl = std::remove_cvref_t<decltype(*std::declval<const M&>().ptr())>;
    return M(std::dynamic_pointer_cast<Impl>(module));
  } else {
    return std::dynamic_pointer_cast<typename M::element_type>(module);
  }
}

}  // namespace detail

/// Copies of a module whose parameters share its memory: torch.nn.parallel.replicate on the CPU. `M`: a holder or a
/// std::shared_ptr to a Module with a clone(). Backward through the copies leaves the sum of their gradients in
/// the module's. The copies serve for one forward: what is done to the module later (train(), load()) does not
/// reach them. DataParallel keeps its replicas and is faster. Throws ValueError for a module without clone().
template <class M>
std::vector<M> replicate(const M& module, int replicas) {
  static_assert(detail::wraps_module<M>,
                "replicate() takes a module holder or a std::shared_ptr to a module");
  const auto original = detail::module_pointer(module);
  std::vector<std::shared_ptr<torch::nn::Module>> copies;
  detail::keep_random_state([&] {
    for (int r = 0; r < replicas; ++r) copies.push_back(detail::clone_module(*original));
  });
  detail::lead_gradients_back(*original, copies);
  std::vector<M> holders;
  for (const auto& copy : copies) holders.push_back(detail::as_holder<M>(copy));
  return holders;
}

/// modules[i]->forward(inputs[i]...), each on a thread, with the caller's grad mode and autocast:
/// torch.nn.parallel.parallel_apply. `inputs`: one tensor or tuple of arguments for each module. Threads share
/// torch's default generator. Throws ValueError where there are not as many inputs as modules, ReplicaError, which
/// names the first, where some throw. Blocks.
template <class M, class Input>
auto parallel_apply(std::vector<M>& modules, const std::vector<Input>& inputs) {
  const auto call = [](M& module, const Input& input) {
    if constexpr (detail::SizedTuple<Input>) {
      return std::apply([&](const auto&... argument) { return module->forward(argument...); }, input);
    } else {
      return module->forward(input);
    }
  };
  using Output = std::remove_cvref_t<decltype(call(modules.front(), inputs.front()))>;
  if (modules.size() != inputs.size()) {
    throw ValueError("parallel_apply: " + std::to_string(modules.size()) + " modules and " +
                     std::to_string(inputs.size()) + " inputs");
  }
  std::vector<std::optional<Output>> outputs(modules.size());
  detail::apply_on_threads(static_cast<int>(modules.size()), [&](int i) {
    const auto place = static_cast<size_t>(i);
    outputs[place].emplace(call(modules[place], inputs[place]));
  });
  std::vector<Output> results;
  for (auto& output : outputs) results.push_back(std::move(*output));
  return results;
}

}  // namespace lockstep
