// Forward and backward in low precision, over parameters that stay in full precision.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/hooks/comm_hook.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep {

/// Names and meanings are those of Python's torch.nn.parallel.distributed._MixedPrecision. Concerns
/// floating-point tensors only.
struct MixedPrecision {
  /// Parameters and inputs have it in forward and backward. Outside they are what they were: optimizers and
  /// checkpoints see full precision, and so do gradients.
  std::optional<at::ScalarType> param_dtype{};
  /// In which gradients are averaged; default: param_dtype.
  std::optional<at::ScalarType> reduce_dtype{};
  /// Buffers are converted to it when the module is wrapped, for good.
  std::optional<at::ScalarType> buffer_dtype{};
};

namespace detail {

/// Gives parameters low-precision values for the time from a forward to the end of its backward. Their
/// gradients come out in the parameters' own dtype. One thread at a time.
class LowPrecision : public std::enable_shared_from_this<LowPrecision> {
 public:
  LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);
  ~LowPrecision() { leave(); }

  at::ScalarType dtype() const { return dtype_; }
  void enter();
  void leave();
  /// After a forward: parameters stay as they are until a backward through `outputs` has ended; where none
  /// can come, and none is awaited, leaves at once.
  void after_forward(const std::vector<at::Tensor>& outputs);

 private:
  void on_output();

  struct Parameter {
    at::Tensor tensor;
    at::Tensor full, low;  // its two values
    c10::intrusive_ptr<torch::autograd::Node> accumulator;
  };
  std::vector<Parameter> parameters_;
  at::ScalarType dtype_;
  bool is_low_ = false;
  bool awaits_backward_ = false;
  std::weak_ptr<int> backward_;  // alive while a backward that will leave runs
};

/// Averages a bucket in `dtype`.
Future reduce_in(at::ScalarType dtype, GradBucket& bucket);

}  // namespace detail
}  // namespace lockstep
