// Dropout whose random numbers may be a replica's own.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::ops {

/// Zeroes with probability p and scales the rest by 1 / (1 - p); p <= 0 returns x. Draws from this thread's
/// replica_generator(), inside a DataParallel, else from torch's default generator, with the bits of at::dropout. On CPU a
/// contiguous float or double tensor takes a third of at::dropout's time, and its graph a quarter of the memory; anything else
/// goes to at::dropout. Differentiable twice. Thread-safe.
at::Tensor dropout(const at::Tensor& x, double p);

/// dropout(x, p) + residual, of the same shape, with the same bits; one pass and one autograd node in place of two.
at::Tensor dropout_add(const at::Tensor& x, double p, const at::Tensor& residual);

}  // namespace lockstep::ops
