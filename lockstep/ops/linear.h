// A linear layer with less bookkeeping around its products.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::ops {

/// input weight^T + bias, as at::linear: [batch, in], [out, in], [out] -> [batch, out]; `bias` may be undefined. On CPU one autograd
/// node takes the place of three and of their views, which is a quarter of a small model's step, and the
/// weight's gradient is computed where DistributedDataParallel averages it (bucket_slot). Other shapes,
/// devices and complex numbers, and what runs under autocast, go to at::linear. Differentiable twice.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace lockstep::ops
