// A loss or a gradient that is not a number: what may be the cause, and what to do.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

namespace lockstep {

/// One line: "<what> is nan at step 3 on rank 1; lower learning_rate ...". The advice depends on whether
/// `module`'s weights are finite (else it names the first parameter that is not) and on whether any step was
/// made. `step`: the optimizer step, from 1, that was not made.
std::string divergence_text(const std::string& what, double value, int64_t step, int rank,
                            const torch::nn::Module& module);

}  // namespace lockstep
