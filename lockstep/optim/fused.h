// What the fused optimizers share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

namespace lockstep::detail {

/// The fused kernels walk raw memory, so a gradient must be laid out as its parameter is.
inline at::Tensor laid_out_like(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (gradient.strides() == parameter.strides() && gradient.scalar_type() == parameter.scalar_type()) {
    return gradient;
  }
  return at::empty_like(parameter).copy_(gradient);
}

}  // namespace lockstep::detail
