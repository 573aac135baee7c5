// A module with the average of its weights, for a scope.
#pragma once

#include <memory>

#include "lockstep/optim/ema.h"

namespace lockstep {

/// As long as the result lives, the module of `average` computes with the average. Does nothing without an average
/// (null), and where the module has it already.
[[nodiscard]] inline std::unique_ptr<ExponentialMovingAverage::Use> ema_scope(
    ExponentialMovingAverage* average) {
  if (average == nullptr || average->is_swapped()) return nullptr;
  return std::make_unique<ExponentialMovingAverage::Use>(*average);
}

}  // namespace lockstep
