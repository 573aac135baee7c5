// A loss or a gradient that is not a number: what may be the cause, and what to do.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// One line: "<what> is nan at step 3 on rank 1; lower learning_rate ...". The advice depends on whether
/// `module`'s weights are finite (else it names the first parameter that is not) and on whether any step was
/// made. `step`: the optimizer step, from 1, that was not made.
std::string divergence_text(const std::string& what, double value, int64_t step, int rank,
                            const torch::nn::Module& module);

/// The sum of the ranks' losses is not finite, or the norm of the gradients. Then it is so on all ranks, which all come here
/// in the same step, each with the loss of its own. Throws Error with divergence_text(), as on_all_ranks does.
void refuse_divergence(double own_loss, double norm, int64_t step, const ProcessGroup& group,
                       const torch::nn::Module& module);

}  // namespace lockstep
