#include "lockstep/optim/parameter_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/parameters.h"

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

template <class Options>
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const torch::nn::Module& module,
                                                                const Options& options,
                                                                const std::vector<ParameterRule>& rules) {
  std::vector<std::regex> patterns;
  for (const auto& rule : rules) {
    try {
      patterns.emplace_back(rule.pattern);
    } catch (const std::regex_error& error) {
      throw ValueError(fmt::format("the parameter rule \"{}\" is not a regular expression: {}", rule.pattern,
                                   error.what()));
    }
  }
  const auto named = detail::named_parameters_once(module);
  struct Group {
    bool decays;  // by its name
    double learning_rate, weight_decay;
    std::vector<at::Tensor> parameters{};
  };
  std::vector<Group> found;
  std::vector<bool> fits(rules.size());
  for (const bool decays : {true, false}) {
    for (const auto& [name, parameter] : named) {
      if (!parameter.requires_grad() || takes_weight_decay(name) != decays) continue;
      Group wanted{.decays = decays,
                   .learning_rate = options.lr(),
                   .weight_decay = decays ? options.weight_decay() : 0};
      for (size_t r = 0; r < rules.size(); ++r) {
        if (!std::regex_search(name, patterns[r])) continue;
        fits[r] = true;
        wanted.learning_rate = rules[r].learning_rate.value_or(wanted.learning_rate);
        wanted.weight_decay = rules[r].weight_decay.value_or(wanted.weight_decay);
        break;
      }
      auto group = std::find_if(found.begin(), found.end(), [&](const Group& other) {
        return other.decays == wanted.decays && other.learning_rate == wanted.learning_rate &&
               other.weight_decay == wanted.weight_decay;
      });
      if (group == found.end()) group = found.insert(found.end(), wanted);
      group->parameters.push_back(parameter);
    }
  }
  for (size_t r = 0; r < rules.size(); ++r) {
    if (!fits[r]) {
      throw ValueError(
          fmt::format("the parameter rule \"{}\" fits no parameter, or only such as an earlier rule "
                      "fits; look at the names in named_parameters()",
                      rules[r].pattern));
    }
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (auto& group : found) {
    auto own = std::make_unique<Options>(options);
    own->lr(group.learning_rate);
    own->weight_decay(group.weight_decay);
    groups.emplace_back(std::move(group.parameters), std::move(own));
  }
  return groups;
}
template std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const torch::nn::Module&,
                                                                         const torch::optim::AdamOptions&,
                                                                         const std::vector<ParameterRule>&);
template std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const torch::nn::Module&,
                                                                         const torch::optim::AdamWOptions&,
                                                                         const std::vector<ParameterRule>&);
template std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const torch::nn::Module&,
                                                                         const torch::optim::SGDOptions&,
                                                                         const std::vector<ParameterRule>&);

void set_group_options(torch::optim::Optimizer& optimizer,
                       const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].has_options()) optimizer.param_groups().at(g).set_options(groups[g].options().clone());
  }
}

}  // namespace lockstep
