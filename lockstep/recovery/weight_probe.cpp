#include "lockstep/recovery/weight_probe.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <utility>

#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/tensor_probe.h"

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
  for (GradientPlaces& noted : noted_) noted.forget();
  kept_ = numbers();
}

void WeightProbe::note_gradients() {
  for (size_t which = 0; which < stateless_.size(); ++which) noted_[which].note(stateless_[which]);
}

bool WeightProbe::is_noted_written(bool with_divided) const {
  for (size_t which = 0; which < stateless_.size(); ++which) {
    const at::Tensor& parameter = stateless_[which];
    if ((with_divided || !is_divided(parameter)) && noted_[which].are_written(parameter)) return true;
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
