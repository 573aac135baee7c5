#include "lockstep/parallel/tensor_probe.h"

#include <algorithm>

namespace lockstep::detail {

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && tensor.numel() > 0 &&
         tensor.is_non_overlapping_and_dense();
}

Elements::Elements(const at::Tensor& tensor)
    : data_(static_cast<const std::byte*>(tensor.const_data_ptr())),
      element_(static_cast<size_t>(tensor.element_size())),
      count_(static_cast<size_t>(tensor.numel())),
      probed_(std::min(kProbedElements, count_)) {}

uint64_t probe_of(const at::Tensor& tensor) {
  uint64_t probe = tensor._version();
  if (!is_plain(tensor)) return probe;
  const Elements elements(tensor);
  for (size_t i = 0; i < elements.probed(); ++i) probe = mix(probe, elements.bits(elements.place(i)));
  return probe;
}

uint64_t probe_of(const std::vector<at::Tensor>& tensors) {
  uint64_t probe = 0;
  for (const at::Tensor& tensor : tensors) probe = mix(probe, probe_of(tensor));
  return probe;
}

}  // namespace lockstep::detail
