// Forward and backward in low precision, over parameters that stay in full precision.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/autograd_node.h"
#include "lockstep/parallel/ddp/named_tensor.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep {

/// Names and meanings are those of Python's torch.nn.parallel.distributed._MixedPrecision. Concerns
/// floating-point tensors only.
struct MixedPrecision {
  /// Parameters and inputs have it in forward and in backward. Outside parameters are what they were: optimizers and
  /// checkpoints see full precision, and so do gradients.
  std::optional<at::ScalarType> param_dtype{};
  /// In which gradients are averaged; default: param_dtype.
  std::optional<at::ScalarType> reduce_dtype{};
  /// Buffers are converted to it when the module is wrapped, for good.
  std::optional<at::ScalarType> buffer_dtype{};
};

namespace detail {

/// Gives parameters low-precision values while a forward runs, and again while a backward through its outputs runs,
/// however they end. Gradients come out in the parameters' own dtype. One thread at a time.
class LowPrecision : public std::enable_shared_from_this<LowPrecision> {
 public:
  LowPrecision(const std::vector<NamedTensor>& parameters, at::ScalarType dtype);
  ~LowPrecision() { leave(); }
  LowPrecision(const LowPrecision&) = delete;
  LowPrecision& operator=(const LowPrecision&) = delete;

  at::ScalarType dtype() const { return dtype_; }
  /// A forward begins, with the values of now. In a backward that has the low values they stay. Throws Error naming a
  /// parameter that was written in a backward since the last forward: the change went to the low copy, and is lost.
  void begin_forward();
  /// It has ended; after an exception without outputs. A backward through `outputs` gets the low values again.
  void end_forward(const std::vector<at::Tensor>& outputs);
  /// Has `tensor` low precision now, as a parameter of this?
  bool is_low(const at::Tensor& tensor) const;

 private:
  class OutputHook;
  class Backward;
  void enter();
  void leave();
  void on_output();
  void end_backward();

  struct Parameter {
    std::string name;
    at::Tensor tensor;
    at::Tensor full, low;  // its two values
    NodePtr accumulator;
    int64_t version = 0;          // at the start of a backward
    std::vector<char> sampled{};  // values, then
  };
  std::vector<Parameter> parameters_;
  at::ScalarType dtype_;
  bool is_low_ = false;
  bool is_in_forward_ = false;  // which has the low values, and no backward around it
  std::string written_;         // the parameter that a backward has written
};

/// Throws Error, which begins with `who`, if one of `tensors` is a parameter that has low precision now: a change would be
/// lost, and a file would hold the low values. Costs nothing while no forward or backward in low precision runs.
/// Thread-safe against other modules' forwards.
void verify_full_precision(const char* who, const std::vector<at::Tensor>& tensors);
/// Is there any parameter in low precision now, in this process?
bool is_any_in_low_precision();

/// Averages a bucket in `dtype`.
Future reduce_in(at::ScalarType dtype, std::optional<WireDtype> wire_dtype, GradBucket& bucket);

}  // namespace detail
}  // namespace lockstep
