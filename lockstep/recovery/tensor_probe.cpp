#include "lockstep/recovery/tensor_probe.h"

#include <algorithm>
#include <cstring>

namespace lockstep::detail {

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && tensor.numel() > 0 &&
         tensor.is_non_overlapping_and_dense();
}

uint64_t bits_at(const at::Tensor& tensor, size_t place) {
  const auto element = static_cast<size_t>(tensor.element_size());
  uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(tensor.const_data_ptr()) + place * element,
              std::min(element, sizeof bits));
  return bits;
}

size_t spread(const at::Tensor& tensor, size_t i, size_t wanted) {
  return (static_cast<size_t>(tensor.numel()) - 1) * i / std::max<size_t>(wanted - 1, 1);
}

uint64_t probe_of(const at::Tensor& tensor) {
  uint64_t probe = tensor._version();
  if (!is_plain(tensor)) return probe;
  const size_t wanted = std::min(kProbedElements, static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < wanted; ++i) probe = mix(probe, bits_at(tensor, spread(tensor, i, wanted)));
  return probe;
}

uint64_t probe_of(const std::vector<at::Tensor>& tensors) {
  uint64_t probe = 0;
  for (const at::Tensor& tensor : tensors) probe = mix(probe, probe_of(tensor));
  return probe;
}

}  // namespace lockstep::detail
