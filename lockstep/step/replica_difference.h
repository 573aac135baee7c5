// Where the replicas of the ranks differ, found in what each rank says of its own. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::detail {

/// What a rank tells the others of a ReplicaItem.
struct ReplicaRecord {
  std::string name{}, description{};
  uint64_t hash = 0;   ///< of the contents
  int64_t bytes = -1;  ///< of the contents; -1: it has none
  bool operator==(const ReplicaRecord&) const = default;
};

/// One hash of all records, whatever their order.
uint64_t hash_of_records(const std::vector<ReplicaRecord>& records);

/// The first thing that is not alike.
struct ReplicaDifference {
  std::string name{};
  int reference = 0;                        ///< the lowest of the ranks that agree with most
  std::vector<int> ranks{};                 ///< those that differ from it, in order
  std::vector<std::string> descriptions{};  ///< by rank: "Float [3] frozen", or "nothing"
  int64_t bytes = -1;    ///< of the reference's contents if ranks differ in them alone; otherwise -1
  std::string number{};  ///< the first number or text that differs, if `name` is a tensor: often the cause
  size_t differing = 0;  ///< how many things differ, with this one
  size_t all = 0;        ///< of how many
};

/// `by_rank`: what each rank has said. The first is the one that stands first in rank 0's list; after these come those that
/// rank 0 lacks, rank by rank.
std::optional<ReplicaDifference> first_difference(const std::vector<std::vector<ReplicaRecord>>& by_rank);

/// Where the contents of a rank differ first from those of the reference.
struct ElementDifference {
  std::string place{};         ///< "[3, 1]"; empty: in a tensor of no dimensions
  std::string own{}, other{};  ///< the values here and at the reference, as text
};

/// The whole message. `place`: where the program is, such as "after step 300"; may be empty. `elements`: by rank; nothing where
/// the rank does not differ.
std::string difference_text(const ReplicaDifference& difference, const std::string& place,
                            const std::vector<std::optional<ElementDifference>>& elements);

}  // namespace lockstep::detail
