// What the reducer attaches to the accumulation of each parameter's gradient, as bucket_slot() sees it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

namespace lockstep {

class BucketSlotHook : public torch::autograd::FunctionPostHook {
 public:
  /// See bucket_slot().
  virtual at::Tensor slot(at::ScalarType dtype) const = 0;
  /// Is it to see the sum over the replicas of a DataParallel, in place of one replica's part?
  virtual bool wants_sum() const { return true; }
  /// While it is aside, a hook that wants the sum ignores what comes: a replica's part. No thread may be in it.
  void set_aside(bool is_aside) { is_aside_ = is_aside; }

 protected:
  bool is_aside() const { return is_aside_; }

 private:
  bool is_aside_ = false;
};

}  // namespace lockstep
