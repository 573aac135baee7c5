#include "lockstep/optim/parameter_groups.h"

#include <algorithm>
#include <cctype>

namespace lockstep {

bool takes_weight_decay(const std::string& name) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* part : {"bias", "layernorm", "rmsnorm"}) {
    if (lower.find(part) != std::string::npos) return false;
  }
  // A component that is "norm" or ends in "_norm".
  for (size_t begin = 0; begin <= lower.size();) {
    const size_t end = std::min(lower.find('.', begin), lower.size());
    const std::string component = lower.substr(begin, end - begin);
    if (component == "norm" || component.ends_with("_norm")) return false;
    begin = end + 1;
  }
  return true;
}

std::vector<torch::optim::OptimizerParamGroup> weight_decay_groups(
    const torch::nn::Module& module, const torch::optim::AdamWOptions& options) {
  std::vector<at::Tensor> decayed, plain;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    (takes_weight_decay(item.key()) ? decayed : plain).push_back(item.value());
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  if (!decayed.empty()) {
    groups.emplace_back(std::move(decayed), std::make_unique<torch::optim::AdamWOptions>(options));
  }
  if (!plain.empty()) {
    auto without = std::make_unique<torch::optim::AdamWOptions>(options);
    without->weight_decay(0);
    groups.emplace_back(std::move(plain), std::move(without));
  }
  return groups;
}

}  // namespace lockstep
