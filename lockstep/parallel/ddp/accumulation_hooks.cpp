#include "lockstep/parallel/ddp/accumulation_hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace lockstep {

AccumulationHooks::AccumulationHooks(size_t count, Make make) : make_(std::move(make)), hooks_(count) {}

AccumulationHooks::~AccumulationHooks() {
  for (size_t p = 0; p < hooks_.size(); ++p) remove(p);
}

void AccumulationHooks::add(size_t parameter, const at::Tensor& tensor) {
  Hook& hook = hooks_[parameter];
  hook.parameter = tensor;
  if (!tensor.requires_grad()) return;
  hook.accumulator = torch::autograd::impl::grad_accumulator(tensor);
  hook.key = hook.accumulator->add_post_hook(make_(parameter));
}

void AccumulationHooks::remove(size_t parameter) {
  Hook& hook = hooks_[parameter];
  if (hook.accumulator) hook.accumulator->del_post_hook(hook.key);
  hook = {};
}

void AccumulationHooks::follow() {
  for (size_t p = 0; p < hooks_.size(); ++p) {
    const Hook& hook = hooks_[p];
    if (!hook.parameter.defined()) continue;
    if (hook.accumulator
            ? torch::autograd::impl::try_get_grad_accumulator(hook.parameter) == hook.accumulator &&
                  hook.accumulator->input_metadata(0).is_same_shape(hook.parameter)
            : !hook.parameter.requires_grad()) {
      continue;
    }
    const at::Tensor parameter = hook.parameter;
    remove(p);
    add(p, parameter);
  }
}

bool AccumulationHooks::is_alone(size_t parameter) const {
  if (!hooks_[parameter].accumulator) return false;
  torch::autograd::Node& accumulator = *hooks_[parameter].accumulator;
  return accumulator.tensor_pre_hooks().empty() && accumulator.pre_hooks().empty() &&
         accumulator.post_hooks().size() <= 1 && accumulator.tensor_post_acc_grad_hooks() == nullptr;
}

bool AccumulationHooks::is_any(
    size_t parameter, const std::function<bool(const torch::autograd::FunctionPostHook&)>& is_such) const {
  if (!hooks_[parameter].accumulator) return false;
  const auto& hooks = hooks_[parameter].accumulator->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [&](const auto& hook) { return is_such(*hook); });
}

bool AccumulationHooks::any_runs() const {
  const auto* const wanted = torch::autograd::get_current_graph_task_exec_info();
  return std::any_of(hooks_.begin(), hooks_.end(), [&](const Hook& hook) {
    if (!hook.accumulator) return false;
    if (wanted == nullptr || wanted->empty()) return true;
    const auto found = wanted->find(hook.accumulator.get());
    return found != wanted->end() && found->second.needed_;
  });
}

}  // namespace lockstep
