#include "lockstep/comm/algorithms/choice.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::algorithms {
namespace {

using enum AllReduceAlgorithm;

constexpr std::array<std::pair<AllReduceAlgorithm, const char*>, 8> kNames = {
    {{AUTO, "auto"},
     {DIRECT, "direct"},
     {REDUCE_BROADCAST, "reduce_broadcast"},
     {ALL_TO_ALL, "all_to_all"},
     {RING, "ring"},
     {TREE, "tree"},
     {HALVING_DOUBLING, "halving_doubling"},
     {HIERARCHICAL, "hierarchical"}}};

}  // namespace

const char* name_of(AllReduceAlgorithm algorithm) {
  return std::find_if(kNames.begin(), kNames.end(),
                      [&](const auto& entry) { return entry.first == algorithm; })
      ->second;
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& [algorithm, name] : kNames) result.emplace_back(name);
  return result;
}

AllReduceAlgorithm algorithm_named(const std::string& name) {
  std::string list;
  for (const auto& [algorithm, known] : kNames) {
    if (name == known) return algorithm;
    list += std::string(list.empty() ? "" : ", ") + known;
  }
  throw ValueError(fmt::format("there is no all-reduce algorithm \"{}\"; choose one of {}", name, list));
}

AllReduceAlgorithm of_environment() {
  return algorithm_named(env::get("LOCKSTEP_ALL_REDUCE_ALGORITHM").value_or("auto"));
}

std::vector<int> choose_nodes(std::vector<int> machines) {
  const auto given = env::get_int("LOCKSTEP_RANKS_PER_NODE");
  if (!given) return machines;
  if (*given < 1) throw ValueError("LOCKSTEP_RANKS_PER_NODE must be 1 or more");
  for (size_t r = 0; r < machines.size(); ++r)
    machines[r] = static_cast<int>(static_cast<int64_t>(r) / *given);
  return machines;
}

}  // namespace lockstep::algorithms
