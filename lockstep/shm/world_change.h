// How the ranks of a node meet after one of them was replaced: without groups, which are all broken then.
#pragma once

#include <chrono>
#include <cstdint>

#include "lockstep/shm/node.h"

namespace lockstep::shm {

/// RankRecord::has_log has it if ranks were replaced and none is left that has the state of the job.
inline constexpr uint32_t kNobodyHasState = 2;
/// RankRecord::outlives_machine has it from the start if no machine ever waits to take the place of a lost one.
inline constexpr uint32_t kNoMachineWaits = 4;

/// One thread at a time. Where Segment::can_heal().
class WorldChange {
 public:
  /// In this order:
  enum class Stage : uint8_t {
    stopped = 1,  ///< touches no memory of other ranks on behalf of a group
    arrived,  ///< is where the job's state is handed over: a new process has made all that the old one had
    cleared,  ///< its part of each group's area is as it was at first
  };

  explicit WorldChange(Node& node) : node_(node) {}

  /// Has a rank been replaced since this one has met the others last?
  bool has_happened() const { return node_.segment().epoch() != node_.peers().epoch(); }
  /// Is this process one that has taken the place of another?
  bool is_replacement() const { return own().incarnation.load(std::memory_order_relaxed) > 0; }
  /// The one to meet for, now.
  uint32_t epoch() const { return node_.segment().epoch(); }
  /// Blocks until all ranks are at `stage` of `epoch`. False: another rank has been replaced meanwhile, and all begin
  /// anew. Throws TimeoutError naming those that do not come, PeerLostError if one has ended that is not replaced.
  bool meet(uint32_t epoch, Stage stage, std::chrono::milliseconds timeout) const;
  /// All have met: groups that are made or renewed from here on are those of this epoch.
  void have_met(uint32_t epoch) { node_.peers().set_epoch(epoch); }

 private:
  RankRecord& own() const { return node_.segment().rank_record(node_.rank()); }
  Node& node_;
};

}  // namespace lockstep::shm
