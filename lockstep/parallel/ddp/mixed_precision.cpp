#include "lockstep/parallel/ddp/mixed_precision.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::detail {
namespace {

/// Another value, of another dtype, for a parameter that keeps its place in the graph: its gradient goes on
/// going to `accumulator`, which the engine converts it for.
void exchange(const at::Tensor& parameter, const at::Tensor& value,
              const c10::intrusive_ptr<torch::autograd::Node>& accumulator) {
  parameter.set_data(value);
  if (accumulator) {
    torch::autograd::impl::set_grad_accumulator(parameter,
                                                c10::weak_intrusive_ptr<torch::autograd::Node>(accumulator));
  }
}

}  // namespace

LowPrecision::LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const at::Tensor& tensor : parameters) {
    if (!tensor.is_floating_point() || tensor.scalar_type() == dtype) continue;
    Parameter parameter;
    parameter.tensor = tensor;
    parameter.low =
        at::empty_like(tensor.variable_data(), tensor.options().dtype(dtype).requires_grad(false));
    parameters_.push_back(std::move(parameter));
  }
}

void LowPrecision::enter() {
  if (is_low_) return;
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    parameter.full = parameter.tensor.variable_data();
    if (parameter.tensor.requires_grad()) {
      parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    }
    parameter.low.copy_(parameter.full);
    exchange(parameter.tensor, parameter.low, parameter.accumulator);
  }
  is_low_ = true;
}

void LowPrecision::leave() {
  if (!is_low_) return;
  for (Parameter& parameter : parameters_) {
    exchange(parameter.tensor, parameter.full, parameter.accumulator);
    parameter.full.reset();
    parameter.accumulator.reset();
  }
  is_low_ = false;
}

void LowPrecision::after_forward(const std::vector<at::Tensor>& outputs) {
  const std::weak_ptr<LowPrecision> self = weak_from_this();
  if (c10::GradMode::is_enabled()) {
    for (const at::Tensor& output : outputs) {
      if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
      output.register_hook([self](const at::Tensor& /*gradient*/) {
        if (const auto precision = self.lock()) precision->on_output();
      });
      awaits_backward_ = true;
    }
  }
  if (!awaits_backward_) leave();
}

void LowPrecision::on_output() {
  if (!backward_.expired()) return;
  // The callback belongs to the backward pass: when an exception ends that, both go away.
  const auto token = std::make_shared<int>();
  backward_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback([self = shared_from_this(), token] {
    self->awaits_backward_ = false;
    self->leave();
  });
}

Future reduce_in(at::ScalarType dtype, GradBucket& bucket) {
  const ProcessGroup& group = bucket.process_group();
  const at::Tensor& buffer = bucket.buffer();
  // Complex gradients, which have buckets of their own, stay as they are.
  if (buffer.scalar_type() == dtype || !buffer.is_floating_point())
    return {group.all_reduce_async(buffer, {.op = ReduceOp::AVG}), buffer};
  const at::Tensor reduced = buffer.to(dtype);
  return Future(group.all_reduce_async(reduced, {.op = ReduceOp::AVG}), reduced)
      .then([buffer](const at::Tensor& average) { return buffer.copy_(average); });
}

}  // namespace lockstep::detail
