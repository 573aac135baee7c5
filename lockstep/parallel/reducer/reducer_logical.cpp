// Gradients of logical ranks, of which a process may have several.
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/reducer/reducer.h"

namespace lockstep {

AllReduceAlgorithm tree_algorithm(const ProcessGroup& group) {
  return group.backend_name() == "lockstep" ? AllReduceAlgorithm::DIRECT : AllReduceAlgorithm::TREE;
}

void Reducer::average_over_logical_ranks(int count) {
  if (comm_hook_ || statistics_.passes > 0 || logical_ranks_ > 0) {
    throw Error(
        "LogicalRanks: made after a backward pass, after other LogicalRanks, or with a communication hook; make it once, "
        "right after DistributedDataParallel");
  }
  logical_ranks_ = count;
}

void Reducer::keep_gradients() {
  std::vector<at::Tensor> gradients;
  std::vector<std::string> missing;
  for (const Parameter& parameter : parameters_) {
    gradients.push_back(std::exchange(parameter.tensor.mutable_grad(), {}));
    if (!parameter.is_trainable) gradients.back().reset();
    // Autograd may hand out one piece of memory as the gradients of several parameters; sums are made in place.
    at::Tensor& gradient = gradients.back();
    if (gradient.defined() && !gradient.is_sparse() && gradient.storage().use_count() > 1)
      gradient = gradient.clone();
    if (parameter.is_trainable && !gradients.back().defined()) missing.push_back(parameter.name);
  }
  if (!missing.empty() && !allows_missing()) {
    constexpr size_t kMost = 20;
    const size_t more = missing.size() > kMost ? missing.size() - kMost : 0;
    if (more > 0) missing.resize(kMost);
    throw Error(fmt::format(
        "DistributedDataParallel: no gradient for {}{}: these parameters took no part in the loss of a logical rank. Set "
        "find_unused_parameters if that is intended",
        fmt::join(missing, ", "), more > 0 ? fmt::format(" and {} more", more) : std::string()));
  }
  kept_.push(std::move(gradients));
}

void Reducer::forget_gradients() {
  kept_.clear();
  for (const Parameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

bool Reducer::has_gradients() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const Parameter& parameter) { return parameter.tensor.grad().defined(); });
}

void Reducer::average_gradients() {
  reset_pass();
  pass_.state = PassState::open;
  pass_.leaves_at_end = true;
  pass_.is_timed = times_next_pass();
  pass_.start = moment();
  for (const size_t p : known_order()) {
    Parameter& parameter = parameters_[p];
    if (!parameter.tensor.grad().defined()) continue;
    parameter.gradients = 1;
    if (order_state_ == Order::own) order_.push_back(p);
  }
  end(/*divisor=*/0);
}

/// To a gradient that is complete in its bucket.
void Reducer::add_kept(const Parameter& parameter) {
  if (logical_ranks_ > 0) kept_.add_to(static_cast<size_t>(&parameter - parameters_.data()), parameter.view);
}

}  // namespace lockstep
