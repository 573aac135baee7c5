// The ranks tell each other hashes of what they have, and find where they differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/step/replica_difference.h"
#include "lockstep/step/replica_items.h"

namespace lockstep::detail {

/// Lists what this rank has now.
using ListItems = std::function<ReplicaItems()>;

/// Throws ReplicasDifferError on all ranks if they do not have the same now; Error on all if `list` throws on one. `place`: see
/// CheckReplicasOptions. Called by all ranks of `group`; blocks.
void compare_replicas(const ProcessGroup& group, const ListItems& list, const std::string& place);

/// compare_replicas() every so many steps, with the hashing spread over the steps before. One thread at a time.
class SpreadComparison {
 public:
  /// `steps`: 1 or more, the same on all ranks.
  SpreadComparison(ProcessGroup group, ListItems list, int64_t steps);
  /// After step `step`, counted from 1; called by all ranks after each step. Hashes a part. If `steps` divides `step`, compares
  /// what was hashed since the last time: blocks, and throws as compare_replicas() does.
  void after_step(int64_t step);

 private:
  void begin_window(int64_t step);
  void hash_part(bool is_last);
  void compare(int64_t step);

  ProcessGroup group_;
  ListItems list_;
  const int64_t steps_;
  int64_t steps_left_ = 0;  // of the window; 0: the next step begins one
  int64_t parts_left_ = 0;
  std::vector<ReplicaRecord> records_{};  // of the window
  std::unordered_set<std::string> hashed_{};
  std::string failure_{};  // of list_
};

}  // namespace lockstep::detail
