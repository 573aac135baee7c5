// Layer normalization by the sample's standard deviation.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::ops {

/// alpha (x - mean) / (std + eps) + bias over the last dimension: [rows, width], [width], [width] -> [rows, width].
/// The standard deviation is that of a sample (divided by width - 1), and eps is added to it, not to the
/// variance: the normalization of many hand-written transformers, which at::layer_norm cannot give. On CPU one
/// autograd node takes the place of ten, each row is read twice, and the gradients of alpha and bias are computed where
/// DistributedDataParallel averages them (bucket_slot). Differentiable once: a backward with create_graph throws
/// c10::Error. `width` is at least 2.
at::Tensor std_layer_norm(const at::Tensor& x, const at::Tensor& alpha, const at::Tensor& bias, double eps);

}  // namespace lockstep::ops
