// Tensors of Python. torch's own casters take three times as long to compile.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

struct _object;

namespace lockstep::python {

/// Those of a list; the caller holds the interpreter's lock. Throws Error where one is none.
std::vector<at::Tensor> tensors_of(_object* list);

}  // namespace lockstep::python
