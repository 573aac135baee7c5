// Dropout whose random numbers may be a replica's own.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::ops {

/// Zeroes with probability p and scales the rest by 1 / (1 - p); p <= 0 returns x. Draws from this thread's
/// replica_generator(), inside a DataParallel, else from torch's default generator, with the bits of at::dropout.
at::Tensor dropout(const at::Tensor& x, double p);

}  // namespace lockstep::ops
