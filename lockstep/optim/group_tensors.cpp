#include "lockstep/optim/group_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/mixed_precision.h"

namespace lockstep::detail {
namespace {

struct PlaceInGroups {
  size_t group, index;
};

std::string describe(const at::Tensor& parameter, const NameOfParameter& name) {
  const std::string called = name ? name(parameter) : "";
  return fmt::format("{}{} [{}]", called.empty() ? "" : called + ", ", c10::toString(parameter.scalar_type()),
                     fmt::join(parameter.sizes(), ", "));
}

/// By group: the numbers of the tensors that are not listed before in their group.
std::vector<std::vector<size_t>> first_listings(const std::string& who, const ParamGroups& groups,
                                                const NameOfParameter& name) {
  std::vector<std::vector<size_t>> kept;
  std::unordered_map<const at::TensorImpl*, PlaceInGroups> places;
  for (size_t g = 0; g < groups.size(); ++g) {
    auto& of_group = kept.emplace_back();
    const std::vector<at::Tensor>& parameters = groups[g].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto [found, is_new] = places.emplace(parameters[i].unsafeGetTensorImpl(), PlaceInGroups{g, i});
      if (is_new) {
        of_group.push_back(i);
      } else if (const auto [group, index] = found->second; group != g) {
        throw ValueError(fmt::format(
            "{}: some parameters appear in more than one parameter group: parameter {} of group {} ({}) is "
            "parameter {} of group {} too; leave it in one of them",
            who, i, g, describe(parameters[i], name), index, group));
      }
    }
  }
  return kept;
}

std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& numbers) {
  std::vector<at::Tensor> selected;
  for (const size_t number : numbers) selected.push_back(tensors[number]);
  return selected;
}

}  // namespace

std::vector<std::vector<at::Tensor>> tensors_once(const ParamGroups& groups) {
  std::vector<std::vector<at::Tensor>> once;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& group : groups) {
    auto& of_group = once.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) of_group.push_back(parameter);
    }
  }
  return once;
}

ParamGroups groups_once(const std::string& who, const ParamGroups& groups, const NameOfParameter& name) {
  const auto kept = first_listings(who, groups, name);
  ParamGroups once;
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<at::Tensor> parameters = select(groups[g].params(), kept[g]);
    if (groups[g].has_options()) {
      once.emplace_back(std::move(parameters), groups[g].options().clone());
    } else {
      once.emplace_back(std::move(parameters));
    }
  }
  return once;
}

void keep_once(const std::string& who, ParamGroups& groups) {
  std::vector<const at::TensorImpl*> listed;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) listed.push_back(parameter.unsafeGetTensorImpl());
  }
  std::sort(listed.begin(), listed.end());
  if (std::adjacent_find(listed.begin(), listed.end()) == listed.end()) return;
  const auto kept = first_listings(who, groups, {});
  for (size_t g = 0; g < groups.size(); ++g) {
    if (kept[g].size() != groups[g].params().size()) groups[g].params() = select(groups[g].params(), kept[g]);
  }
}

void verify_full_precision(const char* who, const ParamGroups& groups) {
  if (!is_any_in_low_precision()) return;
  for (const auto& group : groups) verify_full_precision(who, group.params());
}

}  // namespace lockstep::detail
