// Do all ranks have the same module?
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// A line that says what must agree between ranks: name, shape, dtype, requires_grad, and whether elements
/// share memory.
std::string describe_parameter(const std::string& name, const at::Tensor& parameter);
std::string describe_buffer(const std::string& name, const at::Tensor& buffer);

/// Throws ValueError, which begins with `who`, if `tensor` cannot be written, because elements of it share
/// memory. `what`: such as "buffer ids". Call it once describe_...() has been found to be the same
/// on all ranks: then all of them throw, or none does.
void verify_writable(const std::string& who, const std::string& what, const at::Tensor& tensor);

/// The first line of each text in which they differ, "nothing more" if a text has ended before. They must differ.
std::pair<std::string, std::string> first_difference(const std::string& one, const std::string& other);

/// Throws Error on all ranks, which begins with `who`, unless `text` is the same on all, with the first line
/// that differs from rank 0's and both ranks' versions. Blocks.
void verify_same_on_all_ranks(const ProcessGroup& group, const std::string& who, const std::string& text);

}  // namespace lockstep
