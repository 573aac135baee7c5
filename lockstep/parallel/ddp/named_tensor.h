// A parameter as the reducer is told of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace lockstep {

/// For the reducer: a parameter, and what is known of its gradient.
struct NamedTensor {
  std::string name;                  ///< in the wrapped module
  at::Tensor tensor;                 ///< the parameter itself
  bool has_sparse_gradient = false;  ///< its embedding has sparse=true
};

}  // namespace lockstep
