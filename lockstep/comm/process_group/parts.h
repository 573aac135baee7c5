// What is asked of parts of a tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/types.h"

namespace lockstep {

/// Throws ValueError, which begins with `what`, unless the tensor is contiguous and has all of `parts`.
void check_parts(const char* what, const at::Tensor& tensor, const std::vector<TensorPart>& parts);

/// Throws ValueError if parts overlap: an element that is named twice would be written twice, or read after it
/// was written.
void check_disjoint(const char* what, std::vector<TensorPart> parts);

}  // namespace lockstep
