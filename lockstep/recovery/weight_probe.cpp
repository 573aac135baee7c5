#include "lockstep/recovery/weight_probe.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep::detail {
namespace {

/// What a step of the optimizer changes in one parameter's state.
uint64_t probe_of_state(const torch::optim::OptimizerParamState& state) {
  if (const auto* const adam = dynamic_cast<const torch::optim::AdamParamState*>(&state))
    return static_cast<uint64_t>(adam->step());
  if (const auto* const adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state))
    return static_cast<uint64_t>(adamw->step());
  if (const auto* const sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
    return sgd->momentum_buffer().defined() ? 1 + probe_of(sgd->momentum_buffer()) : 0;
  }
  if (const auto* const adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state))
    return static_cast<uint64_t>(adagrad->step());
  if (const auto* const rmsprop = dynamic_cast<const torch::optim::RMSpropParamState*>(&state))
    return static_cast<uint64_t>(rmsprop->step());
  return 0;
}

bool may_have_no_state(const torch::optim::OptimizerParamGroup& group) {
  const auto* const sgd = dynamic_cast<const torch::optim::SGDOptions*>(&group.options());
  return sgd != nullptr && sgd->momentum() == 0;
}

/// The first element that is not zero, or the number of them.
size_t find_first(const at::Tensor& gradient) {
  const auto element = static_cast<size_t>(gradient.element_size());
  const auto* const bytes = static_cast<const unsigned char*>(gradient.const_data_ptr());
  const size_t count = gradient.nbytes();
  constexpr size_t kBlock = 4096;
  static constexpr unsigned char kZeros[kBlock] = {};
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t length = std::min(kBlock, count - at);
    if (std::memcmp(bytes + at, kZeros, length) == 0) continue;
    const auto* const found =
        std::find_if(bytes + at, bytes + at + length, [](unsigned char b) { return b != 0; });
    return static_cast<size_t>(found - bytes) / element;
  }
  return static_cast<size_t>(gradient.numel());
}

}  // namespace

WeightProbe::WeightProbe(std::vector<at::Tensor> parameters, std::vector<torch::optim::Optimizer*> optimizers)
    : parameters_(std::move(parameters)), optimizers_(std::move(optimizers)) {
  for (torch::optim::Optimizer* const optimizer : optimizers_) {
    const auto& groups = optimizer->param_groups();
    const bool is_divided = dynamic_cast<const ShardedOptimizer*>(optimizer) != nullptr;
    for (const auto& group : groups) {
      for (const at::Tensor& parameter : group.params()) {
        if (is_divided) divided_.insert(parameter.unsafeGetTensorImpl());
        if (may_have_no_state(group) && parameter.requires_grad()) stateless_.push_back(parameter);
      }
    }
  }
  noted_.resize(stateless_.size());
}

void WeightProbe::keep() {
  for (Noted& noted : noted_) noted.is_noted = false;
  kept_ = numbers();
}

void WeightProbe::note_gradients() {
  for (size_t which = 0; which < stateless_.size(); ++which) {
    const at::Tensor& parameter = stateless_[which];
    const at::Tensor& gradient = parameter.grad();
    if (!gradient.defined() || !is_plain(gradient) || !is_plain(parameter) ||
        gradient.strides() != parameter.strides())
      continue;
    // What was noted by a backward before this one may have been written.
    Noted& places = noted_[which];
    if (std::exchange(places.is_noted, true)) continue;
    places.count = 0;
    const Elements gradients(gradient), weights(parameter);
    const auto add = [&](size_t place) {
      places.places[places.count] = place;
      places.bits[places.count++] = weights.bits(place);
    };
    for (size_t i = 0; i < gradients.probed(); ++i) {
      const size_t place = gradients.place(i);
      if (gradients.bits(place) != 0) add(place);
    }
    if (places.count > 0) continue;
    const size_t first = find_first(gradient);
    const size_t end = std::min(first + kProbedElements, gradients.size());
    for (size_t place = first; place < end; ++place) {
      if (gradients.bits(place) != 0) add(place);
    }
  }
}

bool WeightProbe::is_noted_written(bool with_divided) const {
  for (size_t which = 0; which < stateless_.size(); ++which) {
    const at::Tensor& parameter = stateless_[which];
    const Noted& noted = noted_[which];
    if (!noted.is_noted || !is_plain(parameter) || (is_divided(parameter) && !with_divided)) continue;
    const Elements weights(parameter);
    for (size_t i = 0; i < noted.count; ++i) {
      const bool is_there = noted.places[i] < weights.size();
      if (!is_there || weights.bits(noted.places[i]) != noted.bits[i]) return true;
    }
  }
  return false;
}

WeightProbe::Numbers WeightProbe::numbers() const {
  Numbers numbers;
  for (const at::Tensor& parameter : parameters_) {
    uint64_t& sort = is_divided(parameter) ? numbers.divided : numbers.whole;
    sort = mix(sort, probe_of(parameter));
  }
  for (torch::optim::Optimizer* const optimizer : optimizers_) {
    // A sum: the state is in no order.
    uint64_t sum = optimizer->state().size();
    for (const auto& [parameter, state] : optimizer->state()) {
      sum += state ? probe_of_state(*state) : 0;
    }
    uint64_t& sort =
        dynamic_cast<const ShardedOptimizer*>(optimizer) != nullptr ? numbers.divided : numbers.whole;
    sort = mix(sort, sum);
  }
  return numbers;
}

}  // namespace lockstep::detail
