#include "lockstep/optim/ema.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <set>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

ExponentialMovingAverage::ExponentialMovingAverage(const torch::nn::Module& module, double decay,
                                                   bool use_buffers)
    : decay_(decay) {
  if (!(decay >= 0 && decay <= 1)) {
    throw ValueError(fmt::format("ExponentialMovingAverage: decay is {}; it must be in [0, 1]", decay));
  }
  std::set<const c10::TensorImpl*> seen;
  const auto take = [&](const auto& items) {
    for (const auto& item : items) {
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;  // tied
      names_.push_back(item.key());
      of_module_.push_back(item.value());
      parameters_.push_back(item.value().detach());
      averages_.push_back(parameters_.back().clone());
    }
  };
  take(module.named_parameters());
  if (!use_buffers) return;
  auto buffers = module.named_buffers();
  torch::OrderedDict<std::string, at::Tensor> floating;
  for (const auto& item : buffers)
    if (item.value().defined() && item.value().is_floating_point()) floating.insert(item.key(), item.value());
  take(floating);
}

void ExponentialMovingAverage::refuse_swapped(const char* call) const {
  if (!is_swapped_) return;
  throw Error(
      fmt::format("ExponentialMovingAverage: {} while the module has the average; swap() back before", call));
}

/// Parameters may get other memory: by torch::load(), by to(kDouble), or by an optimizer that divides its work. In a
/// shorter dtype they are MixedPrecision's for the moment, and their own values are where they were.
void ExponentialMovingAverage::follow() {
  for (size_t i = 0; i < of_module_.size(); ++i) {
    const at::Tensor& now = of_module_[i];
    if (now.scalar_type() != parameters_[i].scalar_type()) {
      if (now.element_size() <= parameters_[i].element_size()) continue;
      averages_[i] = averages_[i].to(now.scalar_type());
    }
    if (now.const_data_ptr() != parameters_[i].const_data_ptr()) parameters_[i] = now.detach();
  }
}

void ExponentialMovingAverage::update() {
  refuse_swapped("update()");
  if (detail::StepUnderWay::current() != nullptr) {
    ++updates_in_step_;
  } else {
    take_in();
  }
}

void ExponentialMovingAverage::commit_step() {
  for (; updates_in_step_ > 0; --updates_in_step_) take_in();
}

void ExponentialMovingAverage::take_in() {
  const at::NoGradGuard no_grad;
  if (parameters_.empty()) return;
  follow();
  if (num_updates_++ == 0) {
    at::_foreach_copy_(averages_, parameters_);
  } else {
    at::_foreach_lerp_(averages_, parameters_, 1 - decay_);
  }
}

void ExponentialMovingAverage::swap() {
  const at::NoGradGuard no_grad;
  follow();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor parameter = parameters_[i].clone();
    parameters_[i].copy_(averages_[i]);
    averages_[i].copy_(parameter);
  }
  is_swapped_ = !is_swapped_;
}

ExponentialMovingAverage::Use ExponentialMovingAverage::use() {
  refuse_swapped("use()");
  return Use(*this);
}

StateDict ExponentialMovingAverage::state_dict() const {
  refuse_swapped("state_dict()");
  StateDict state;
  for (size_t i = 0; i < names_.size(); ++i) state.tensors[names_[i]] = averages_[i];
  state.scalars["num_updates"] = num_updates_;
  return state;
}

void ExponentialMovingAverage::load_state_dict(const StateDict& state) {
  refuse_swapped("load_state_dict()");
  const auto num_updates = state.get<int64_t>("ExponentialMovingAverage", "num_updates");
  std::vector<at::Tensor> found;
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto tensor = state.tensors.find(names_[i]);
    if (tensor == state.tensors.end() || tensor->second.sizes() != averages_[i].sizes()) {
      throw ValueError(fmt::format("ExponentialMovingAverage: the state has no {} of shape [{}]", names_[i],
                                   fmt::join(averages_[i].sizes(), ", ")));
    }
    found.push_back(tensor->second);
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < found.size(); ++i) averages_[i].copy_(found[i]);
  num_updates_ = num_updates;
}

}  // namespace lockstep
