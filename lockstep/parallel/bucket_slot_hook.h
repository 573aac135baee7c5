// What the reducer attaches to the accumulation of each parameter's gradient, as bucket_slot() sees it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

namespace lockstep {

class BucketSlotHook : public torch::autograd::FunctionPostHook {
 public:
  /// See bucket_slot().
  virtual at::Tensor slot(at::ScalarType dtype) const = 0;
};

}  // namespace lockstep
