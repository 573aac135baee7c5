#include "lockstep/parallel/parameters.h"

#include <unordered_map>
#include <unordered_set>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<at::Tensor> parameters(const torch::nn::Module& module, bool recurse) {
  return detail::each_tensor_once(module.parameters(recurse));
}

std::vector<at::Tensor> detail::parameters_of(const torch::nn::Module* module, bool recurse) {
  if (module == nullptr) throw ValueError("parameters: there is no module, the pointer to it is null");
  return parameters(*module, recurse);
}

detail::NamedParameters detail::named_parameters_once(const torch::nn::Module& module) {
  NamedParameters once;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) once.emplace_back(item.key(), item.value());
  }
  return once;
}

std::vector<detail::TiedNames> detail::find_tied_parameters(const torch::nn::Module& module) {
  std::vector<TiedNames> all;
  std::unordered_map<const at::TensorImpl*, size_t> places;
  for (const auto& item : module.named_parameters()) {
    const auto [found, is_new] = places.emplace(item.value().unsafeGetTensorImpl(), all.size());
    if (is_new) all.emplace_back();
    all[found->second].push_back(item.key());
  }
  std::erase_if(all, [](const TiedNames& names) { return names.size() < 2; });
  return all;
}

std::vector<at::Tensor> detail::each_tensor_once(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> once;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) once.push_back(tensor);
  }
  return once;
}

}  // namespace lockstep
