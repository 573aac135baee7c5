#include "lockstep/comm/algorithms/choice.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
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

/// The first row that fits holds. Measured by `lockstep bench all-reduce --algorithm ...` on 2 cores
/// (docs/performance.md).
struct Row {
  std::string_view backend;  ///< "": any
  int most_ranks;
  size_t most_bytes;
  AllReduceAlgorithm algorithm;
};
constexpr size_t kAnySize = std::numeric_limits<size_t>::max();
constexpr int kAnyRanks = std::numeric_limits<int>::max();
/// On Gloo, TREE and REDUCE_BROADCAST are faster up to 1 MiB where ranks share cores; but the group may have
/// ranks in Python, which run Gloo's own.
constexpr std::array<Row, 1> kTable = {{{"", kAnyRanks, kAnySize, DIRECT}}};

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
  throw ValueError("there is no all-reduce algorithm \"" + name + "\"; choose one of " + list);
}

AllReduceAlgorithm choose(const std::string& backend, size_t bytes, int ranks) {
  return std::find_if(kTable.begin(), kTable.end(),
                      [&](const Row& row) {
                        return (row.backend.empty() || row.backend == backend) && ranks <= row.most_ranks &&
                               bytes <= row.most_bytes;
                      })
      ->algorithm;
}

AllReduceAlgorithm resolve(std::optional<AllReduceAlgorithm> wish, const std::string& backend, size_t bytes,
                           int ranks) {
  // Read once: the environment is the job's, and a call takes a fraction of a microsecond.
  static const AllReduceAlgorithm of_environment =
      algorithm_named(env::get("LOCKSTEP_ALL_REDUCE_ALGORITHM").value_or("auto"));
  const AllReduceAlgorithm algorithm = wish.value_or(of_environment);
  return algorithm == AUTO ? choose(backend, bytes, ranks) : algorithm;
}

int ranks_per_node(int ranks) {
  const auto given = env::get_int("LOCKSTEP_RANKS_PER_NODE");
  if (given && *given < 1) throw ValueError("LOCKSTEP_RANKS_PER_NODE must be 1 or more");
  const int64_t local = given ? *given : env::get_int(env::kLocalWorldSize).value_or(ranks);
  return static_cast<int>(std::clamp<int64_t>(local, 1, ranks));
}

}  // namespace lockstep::algorithms
