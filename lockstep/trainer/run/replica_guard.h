// Watches during a training that all ranks keep the same weights. For the sources of lockstep/trainer alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/step/compare_replicas.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep::detail {

/// Compares the ranks' replicas when replica_check_steps says so. All ranks make the same calls, which block; each throws,
/// if the replicas differ, as on_all_ranks does. One thread at a time.
class ReplicaGuard {
 public:
  /// `list`: what a replica consists of, at the time of the call.
  ReplicaGuard(const TrainingArguments& arguments, ProcessGroup group, ListItems list);
  /// After each step. Returns whether it communicates.
  bool after_step(int64_t step);
  /// Compares everything now, unless that was done at this step: before a checkpoint, and at the end.
  void check(int64_t step);

 private:
  void report(const std::function<void()>& compare) const;

  ProcessGroup group_;
  ListItems list_;
  bool is_on_;
  std::optional<SpreadComparison> spread_{};
  int64_t checked_step_ = -1;
};

}  // namespace lockstep::detail
