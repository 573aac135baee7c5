// Clipping of gradients by their total norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep {

/// `norm_type`-norm of all defined gradients of `parameters`, each tensor once, taken as one vector (infinity: the largest
/// absolute value; 0: how many of the gradients are not all zero, as torch.nn.utils counts); 0 when there is
/// none. Added in double precision, in a fixed order (chunk_norm.h), so that it has the same bits however
/// many threads compute it. Gradients that are not on the CPU are added on their device, in an order that is
/// LibTorch's (untested on GPUs). Blocking; not thread-safe against backward.
double grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2.0);

/// Scales the gradients in place by max_norm / (norm + 1e-6) where that is below 1, as
/// torch.nn.utils.clip_grad_norm_ does, and returns the norm before that. A norm that is not finite is
/// returned as it is and scales the gradients by it, as there; with `error_if_nonfinite` it is an Error, and
/// the gradients stay as they are.
double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                       bool error_if_nonfinite = false);

/// Multiplies the gradients in place by `scale`, then clips them to `max_norm` (0: not) as clip_grad_norm_ does,
/// all in one pass over them, and returns their 2-norm before clipping. A norm that is not finite leaves them as
/// they are.
double scale_and_clip_grad_norm_(const std::vector<at::Tensor>& parameters, double scale, double max_norm);

}  // namespace lockstep
