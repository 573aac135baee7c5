// A parameter as the reducer is told of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace lockstep {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool has_sparse_gradient = false;
};

}  // namespace lockstep
