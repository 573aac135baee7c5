#include "lockstep/step/replica_difference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/step/replica_hash.h"

namespace lockstep::detail {
namespace {

/// By rank; null where it has none.
using OfRanks = std::vector<const ReplicaRecord*>;

bool are_alike(const ReplicaRecord* a, const ReplicaRecord* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return *a == *b;
}

/// The lowest rank of the largest set of ranks that are alike.
int find_reference(const OfRanks& records) {
  int reference = 0;
  ptrdiff_t most = 0;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    const auto alike = std::count_if(records.begin(), records.end(), [&](const ReplicaRecord* record) {
      return are_alike(record, records[rank]);
    });
    if (alike > most) {
      most = alike;
      reference = static_cast<int>(rank);
    }
  }
  return reference;
}

/// Do the ranks differ in their contents alone?
bool have_one_description(const OfRanks& records) {
  return std::all_of(records.begin(), records.end(), [&](const ReplicaRecord* record) {
    return record != nullptr && record->description == records.front()->description && record->bytes >= 0;
  });
}

bool has_contents(const OfRanks& records) {
  return std::any_of(records.begin(), records.end(),
                     [](const ReplicaRecord* record) { return record != nullptr && record->bytes >= 0; });
}

ReplicaDifference describe_difference(const OfRanks& records, const std::string& name) {
  ReplicaDifference difference{.name = name, .reference = find_reference(records)};
  const ReplicaRecord* const reference = records[static_cast<size_t>(difference.reference)];
  for (size_t rank = 0; rank < records.size(); ++rank) {
    if (!are_alike(records[rank], reference)) difference.ranks.push_back(static_cast<int>(rank));
    difference.descriptions.push_back(records[rank] == nullptr ? "nothing" : records[rank]->description);
  }
  if (have_one_description(records)) difference.bytes = reference->bytes;
  return difference;
}

std::string list_ranks(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  return fmt::format("ranks {}", fmt::join(ranks, ", "));
}

/// "rank 1 differs from rank 0", or "ranks 1, 3 differ from rank 0 and the others".
std::string who_differs(const ReplicaDifference& difference) {
  const size_t alike = difference.descriptions.size() - difference.ranks.size();
  return fmt::format("{} {} from rank {}{}", list_ranks(difference.ranks),
                     difference.ranks.size() == 1 ? "differs" : "differ", difference.reference,
                     alike > 1 ? " and the others" : "");
}

/// How one rank differs; empty: that is not known any more.
std::string how_differs(const ReplicaDifference& difference, int rank,
                        const std::vector<std::optional<ElementDifference>>& elements) {
  const std::string& own = difference.descriptions[static_cast<size_t>(rank)];
  const std::string& other = difference.descriptions[static_cast<size_t>(difference.reference)];
  if (own != other)
    return fmt::format("rank {} has {}, rank {} has {}", rank, own, difference.reference, other);
  const auto& element =
      static_cast<size_t>(rank) < elements.size() ? elements[static_cast<size_t>(rank)] : std::nullopt;
  if (!element) return {};
  return fmt::format("the first different {} is {} on rank {} and {} on rank {}",
                     element->place.empty() ? "value" : "element " + element->place, element->own, rank,
                     element->other, difference.reference);
}

}  // namespace

uint64_t hash_of_records(const std::vector<ReplicaRecord>& records) {
  uint64_t sum = records.size();
  for (const ReplicaRecord& record : records)
    sum += hash_of_item(record.name, record.description, record.hash);
  return sum;
}

std::optional<ReplicaDifference> first_difference(const std::vector<std::vector<ReplicaRecord>>& by_rank) {
  std::vector<std::string> names;  // in the order in which they are looked at
  std::unordered_map<std::string, OfRanks> records;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const ReplicaRecord& record : by_rank[rank]) {
      const auto [place, is_new] = records.try_emplace(record.name, by_rank.size(), nullptr);
      if (is_new) names.push_back(record.name);
      place->second[rank] = &record;
    }
  }
  std::optional<ReplicaDifference> first;
  size_t differing = 0;
  for (const std::string& name : names) {
    const OfRanks& of_ranks = records.at(name);
    const bool differs = std::any_of(of_ranks.begin(), of_ranks.end(), [&](const ReplicaRecord* record) {
      return !are_alike(record, of_ranks.front());
    });
    if (!differs) continue;
    ++differing;
    if (!first) {
      first = describe_difference(of_ranks, name);
    } else if (first->bytes >= 0 && first->number.empty() && !has_contents(of_ranks)) {
      first->number = name;
    }
  }
  if (first) {
    first->differing = differing;
    first->all = names.size();
  }
  return first;
}

std::string difference_text(const ReplicaDifference& difference, const std::string& place,
                            const std::vector<std::optional<ElementDifference>>& elements) {
  std::string text = fmt::format("the ranks' replicas differ{}{}: {} of {}", place.empty() ? "" : " ", place,
                                 difference.name, who_differs(difference));
  constexpr size_t kMostRanks = 4;
  for (size_t i = 0; i < difference.ranks.size() && i < kMostRanks; ++i) {
    const std::string how = how_differs(difference, difference.ranks[i], elements);
    if (!how.empty()) text += "; " + how;
  }
  text += fmt::format(
      ". In all {} of {} tensors and numbers differ{}. Find what changed them on some ranks only, such as a load, an "
      "initialization or an optimizer's step; sync_module_states() and broadcast_optimizer_state() give all ranks those of one",
      difference.differing, difference.all,
      difference.number.empty() ? "" : fmt::format(", {} too", difference.number));
  return text;
}

}  // namespace lockstep::detail
