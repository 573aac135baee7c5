// What the reducer attaches to the accumulation of each parameter's gradient, as gradient_home() sees it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

namespace lockstep {

class GradientHook : public torch::autograd::FunctionPostHook {
 public:
  /// See gradient_home().
  virtual at::Tensor home(at::ScalarType dtype) const = 0;
};

}  // namespace lockstep
