// Do all ranks have the same module?
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// A line that says what must agree between ranks: name, shape, dtype and requires_grad.
std::string describe_parameter(const std::string& name, const at::Tensor& parameter);
std::string describe_buffer(const std::string& name, const at::Tensor& buffer);

/// Throws Error on all ranks, which begins with `who`, unless `text` is the same on all, with the first line
/// that differs from rank 0's and both ranks' versions. Blocks.
void verify_same_on_all_ranks(const ProcessGroup& group, const std::string& who, const std::string& text);

}  // namespace lockstep
