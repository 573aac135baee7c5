#include "lockstep/optim/memory/parameter_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace lockstep::detail {

ParameterLayout lay_out_parameters(const std::vector<at::Tensor>& parameters) {
  constexpr int64_t kCacheLine = 64;
  ParameterLayout layout;
  for (const at::Tensor& parameter : parameters) {
    layout.offsets.push_back(layout.elements);
    const int64_t per_line = kCacheLine / parameter.element_size();
    layout.elements += (parameter.numel() + per_line - 1) / per_line * per_line;
  }
  return layout;
}

void move_parameter(const at::Tensor& parameter, const at::Tensor& flat, int64_t offset, bool copies) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> strides = parameter.is_non_overlapping_and_dense()
                                           ? parameter.strides().vec()
                                           : at::empty(parameter.sizes(), at::kMeta).strides().vec();
  auto* const memory = static_cast<std::byte*>(flat.mutable_data_ptr()) + offset * flat.element_size();
  const at::Tensor moved = at::from_blob(
      memory, parameter.sizes(), strides, [flat](void* /*memory*/) {},
      at::TensorOptions().dtype(parameter.scalar_type()));
  if (copies) moved.copy_(parameter);
  parameter.set_data(moved);
}

}  // namespace lockstep::detail
