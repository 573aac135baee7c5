#include "lockstep/parallel/ddp/mixed_precision.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/parallel/autograd_node.h"
#include "lockstep/parallel/hooks/default_hooks.h"

namespace lockstep::detail {
namespace {

/// Another value, of another dtype, for a parameter that keeps its place in the graph: its gradient goes on
/// going to `accumulator`, which the engine converts it for.
void exchange(const at::Tensor& parameter, const at::Tensor& value, const NodePtr& accumulator) {
  parameter.set_data(value);
  if (accumulator) {
    torch::autograd::impl::set_grad_accumulator(parameter, WeakNodePtr(accumulator));
  }
}

/// Some elements of a tensor, from all over it. LibTorch's optimizers write through data(), which no version counts, and
/// change nearly all of them.
std::vector<char> sample(const at::Tensor& tensor) {
  constexpr int64_t kMost = 16;
  const int64_t count = std::min(tensor.numel(), kMost);
  std::vector<char> bytes;
  if (count == 0 || !tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) return bytes;
  const size_t element = tensor.element_size();
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = count == 1 ? 0 : (tensor.numel() - 1) * i / (count - 1);
    const char* const place = begin + static_cast<size_t>(index) * element;
    bytes.insert(bytes.end(), place, place + element);
  }
  return bytes;
}

/// Those whose parameters have the low values now.
class LowNow {
 public:
  static LowNow& of_process() {
    static LowNow now;
    return now;
  }
  void add(const LowPrecision* low) {
    const base::LockGuard lock(mutex_);
    all_.push_back(low);
    count_.store(all_.size(), std::memory_order_relaxed);
  }
  void remove(const LowPrecision* low) {
    const base::LockGuard lock(mutex_);
    std::erase(all_, low);
    count_.store(all_.size(), std::memory_order_relaxed);
  }
  bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
  bool has(const at::Tensor& tensor) {
    const base::LockGuard lock(mutex_);
    return std::any_of(all_.begin(), all_.end(),
                       [&](const LowPrecision* low) { return low->is_low(tensor); });
  }

 private:
  base::Mutex mutex_;
  std::vector<const LowPrecision*> all_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};
};

}  // namespace

/// On an output of a forward. The graph keeps the low values: a wrapper that goes away after forward has them all the
/// same.
class LowPrecision::OutputHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit OutputHook(std::shared_ptr<LowPrecision> precision) : precision_(std::move(precision)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    precision_->on_output();
    return gradients;
  }

 private:
  std::shared_ptr<LowPrecision> precision_;
};

/// Belongs to a backward in the engine: it goes with that, and also when an exception ends that.
class LowPrecision::Backward {
 public:
  explicit Backward(std::shared_ptr<LowPrecision> precision) : precision_(std::move(precision)) {}
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;
  ~Backward() { end(); }
  void end() {
    if (const auto precision = std::exchange(precision_, nullptr)) precision->end_backward();
  }

 private:
  std::shared_ptr<LowPrecision> precision_;
};

LowPrecision::LowPrecision(const std::vector<NamedTensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const NamedTensor& named : parameters) {
    if (!named.tensor.is_floating_point() || named.tensor.scalar_type() == dtype) continue;
    Parameter& parameter = parameters_.emplace_back();
    parameter.name = named.name;
    parameter.tensor = named.tensor;
  }
}

bool LowPrecision::is_low(const at::Tensor& tensor) const {
  return is_low_ && std::any_of(parameters_.begin(), parameters_.end(),
                                [&](const Parameter& parameter) { return parameter.tensor.is_same(tensor); });
}

void LowPrecision::enter() {
  for (Parameter& parameter : parameters_) {
    parameter.full = parameter.tensor.variable_data();
    if (parameter.tensor.requires_grad()) {
      parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    }
    exchange(parameter.tensor, parameter.low, parameter.accumulator);
  }
  is_low_ = true;
  LowNow::of_process().add(this);
}

void LowPrecision::leave() {
  if (!is_low_) return;
  for (Parameter& parameter : parameters_) {
    exchange(parameter.tensor, parameter.full, parameter.accumulator);
    parameter.full.reset();
    parameter.accumulator.reset();
  }
  LowNow::of_process().remove(this);
  is_low_ = false;
}

void LowPrecision::begin_forward() {
  if (!written_.empty()) {
    throw Error(
        fmt::format("DistributedDataParallel: parameter {} was written inside a backward pass with "
                    "mixed_precision, when it held a {} copy of its values: the change is lost. Write "
                    "weights, and call an optimizer's step(), once backward() has returned",
                    std::exchange(written_, {}), c10::toString(dtype_)));
  }
  if (is_low_) return;
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    const at::Tensor full = parameter.tensor.variable_data();
    // A graph may still have the memory of the low values, if the parameter has another shape since.
    if (!parameter.low.defined() || parameter.low.sizes() != full.sizes() ||
        parameter.low.device() != full.device()) {
      parameter.low = at::empty_like(full, full.options().dtype(dtype_).requires_grad(false));
    }
    parameter.low.copy_(full);
  }
  enter();
  is_in_forward_ = true;
}

void LowPrecision::end_forward(const std::vector<at::Tensor>& outputs) {
  if (std::exchange(is_in_forward_, false)) leave();
  if (!c10::GradMode::is_enabled()) return;
  for (const at::Tensor& output : outputs) {
    // A hook on a leaf (an input or a parameter handed back) would stay for good.
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.grad_fn()->add_tensor_pre_hook(std::make_unique<OutputHook>(shared_from_this()));
  }
}

void LowPrecision::on_output() {
  if (is_low_) return;
  enter();
  for (Parameter& parameter : parameters_) {
    parameter.version = parameter.tensor._version();
    parameter.sampled = sample(parameter.low);
  }
  const auto backward = std::make_shared<Backward>(shared_from_this());
  torch::autograd::Engine::get_default_engine().queue_callback([backward] { backward->end(); });
}

void LowPrecision::end_backward() {
  for (const Parameter& parameter : parameters_) {
    if (!written_.empty()) break;
    const bool is_written =
        parameter.tensor._version() != parameter.version || sample(parameter.low) != parameter.sampled;
    if (is_written) written_ = parameter.name;
  }
  leave();
}

bool is_any_in_low_precision() { return LowNow::of_process().any(); }

void verify_full_precision(const char* who, const std::vector<at::Tensor>& tensors) {
  if (!is_any_in_low_precision()) return;
  for (const at::Tensor& tensor : tensors) {
    if (!LowNow::of_process().has(tensor)) continue;
    throw Error(
        fmt::format("{}: called inside a forward or backward pass with mixed_precision, in which "
                    "parameters hold {} copies of their values; call it once backward() has returned",
                    who, c10::toString(tensor.scalar_type())));
  }
}

Future reduce_in(at::ScalarType dtype, std::optional<WireDtype> wire_dtype, GradBucket& bucket) {
  const at::Tensor& buffer = bucket.buffer();
  // Complex gradients, which have buckets of their own, stay as they are.
  if (buffer.scalar_type() == dtype || !buffer.is_floating_point())
    return average_bucket(bucket, buffer, wire_dtype);
  return average_bucket(bucket, buffer.to(dtype), wire_dtype).then([buffer](const at::Tensor& average) {
    return buffer.copy_(average);
  });
}

}  // namespace lockstep::detail
