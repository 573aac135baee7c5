// Clipping of gradients by their total norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep {

/// 2-norm of all defined gradients of `parameters` taken as one vector; 0 when there is none. Squares are
/// added in double precision, in a fixed order (chunk_norm.h), so that the norm has the same bits however
/// many threads compute it. Blocking; not thread-safe against backward.
double grad_norm(const std::vector<at::Tensor>& parameters);

/// Scales the gradients in place by max_norm / (norm + 1e-6) where that is below 1, as
/// torch.nn.utils.clip_grad_norm_ does, and returns the norm before that. A norm that is not finite is
/// returned as it is and scales the gradients by it, as there.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm);

}  // namespace lockstep
