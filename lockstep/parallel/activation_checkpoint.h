// Activation checkpointing: less memory for a second run of a part of the forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Options of activation_checkpoint.
struct ActivationCheckpointOptions {
  /// The second run draws the random numbers that the first one drew, so that dropout drops the same elements. Without
  /// it the second run draws new ones.
  bool preserve_rng_state = true;
};

namespace detail {

class ActivationCheckpointFrame;

/// What operations of this thread save for their backward while it lives is not kept, but made again by `run_again`.
class ActivationCheckpointScope {
 public:
  using RunAgain = std::function<void(const std::vector<at::Tensor>& inputs)>;
  ActivationCheckpointScope(const ActivationCheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                            RunAgain run_again);
  ~ActivationCheckpointScope();
  ActivationCheckpointScope(const ActivationCheckpointScope&) = delete;

 private:
  std::shared_ptr<ActivationCheckpointFrame> frame_;  // null without gradients
};

}  // namespace detail

/// A part of a model that calls activation_checkpoint() for its layers if it is told so, with the name that transformers'
/// modules give the field. Derive the module from it beside torch::nn::Module.
struct GradientCheckpointing {
  virtual ~GradientCheckpointing() = default;
  /// In training mode. Default: off.
  bool gradient_checkpointing = false;
};
/// Sets `gradient_checkpointing` in all parts of `module` that are GradientCheckpointing, and returns their number.
size_t set_gradient_checkpointing(torch::nn::Module& module, bool on = true);

/// Is a function of activation_checkpoint() run for the second time in this thread, inside a backward?
bool is_recomputing();

/// Python's torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False). Returns function(inputs...). Keeps the
/// inputs, and not what the operations inside save for the backward: when the backward needs the first of those, it calls
/// `function` once more. The gradients are those of function(inputs...), to the bit.
///
///     x = lockstep::activation_checkpoint([layer](const torch::Tensor& h) { return layer.ptr()->forward(h); }, x);
///     x = lockstep::activation_checkpoint(layer, x);                            // a module holder: the same
///
/// `inputs`: tensors, which may be undefined; `function` captures everything else, and lives as long as the graph. So let it
/// capture by value: the backward calls it when the variables around the call are gone, such as a loop's `layer`. It may
/// return anything, use parameters and other tensors that require gradients, and call activation_checkpoint() itself.
/// Where gradients are off it is called and nothing else happens.
///
/// The second run draws the random numbers that the first one drew from LibTorch's default generators (of the CPU and of the
/// inputs' devices) and from a DataParallel replica's, and has its autocast mode. Everything else that `function` does
/// happens twice: the running statistics of a BatchNorm move twice, as in Python, and collectives run twice, on all ranks.
/// `function` must do the same each time: if the second run saves another number of tensors, or other shapes, the backward
/// throws Error. It also does if an input, or a tensor that an operation inside saved for the backward, has been changed in
/// place since the first run. As in all of autograd, the tensor's version tells that: a write through data() is not noticed,
/// and torch::optim::SGD writes its weights so. Call the backward before the optimizer's step.
///
/// The backward may be DistributedDataParallel's (it needs no static_graph), DataParallel's or torch::autograd::grad()'s. If
/// the graph is retained, each backward runs `function` again. Throws Error if `function` runs a backward through what it
/// has computed itself, and in a Python process, which has torch.utils.checkpoint.
///
/// Thread-safe, but the default generators are the process's: if other threads draw from them at the same time, the second
/// run may draw other numbers than the first.
template <class Function, class... Inputs>
auto activation_checkpoint(const ActivationCheckpointOptions& options, Function function,
                           const Inputs&... inputs) {
  static_assert((std::is_same_v<Inputs, at::Tensor> && ...),
                "activation_checkpoint: pass tensors only, and let the function capture everything else");
  const auto shared = std::make_shared<Function>(std::move(function));
  const detail::ActivationCheckpointScope scope(options, std::vector<at::Tensor>{inputs...},
                                                [shared](const std::vector<at::Tensor>& again) {
                                                  [&]<size_t... I>(std::index_sequence<I...>) {
                                                    static_cast<void>((*shared)(again[I]...));
                                                  }
                                                  (std::index_sequence_for<Inputs...>{});
                                                });
  return (*shared)(inputs...);
}

/// activation_checkpoint() with the default options.
template <class Function, class... Inputs>
requires(!std::is_same_v<Function, ActivationCheckpointOptions>) auto activation_checkpoint(
    Function function, const Inputs&... inputs) {
  return activation_checkpoint(ActivationCheckpointOptions{}, std::move(function), inputs...);
}

}  // namespace lockstep
