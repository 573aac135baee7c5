// Parameters that lie one after another in one piece of memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::detail {

/// Where each of `parameters`, all of one dtype, begins, in elements, each on a cache line.
struct ParameterLayout {
  std::vector<int64_t> offsets;
  int64_t elements = 0;
};
ParameterLayout lay_out_parameters(const std::vector<at::Tensor>& parameters);

/// Makes `parameter` a tensor over the memory of `flat` at `offset` elements, in its own strides where it is
/// dense and contiguous otherwise. It keeps `flat` alive and has a storage of its own, no larger than it is,
/// so that saving it saves nothing else. `copies`: its values come along; otherwise it gets those that are
/// there.
void move_parameter(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset, bool copies);

}  // namespace lockstep::detail
