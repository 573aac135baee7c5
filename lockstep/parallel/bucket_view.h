// Views of flat buckets that stand for gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

/// A tensor in the memory of `flat` at `offset` elements, laid out as `like` if that is dense (channels_last too), and
/// contiguous otherwise. Not a view to autograd: Optimizer::zero_grad detaches gradients in place, which it refuses for
/// views.
at::Tensor view_in_bucket(const at::Tensor& flat, int64_t offset, const at::Tensor& like);
/// Are both the same elements of the same memory?
bool is_same_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep
