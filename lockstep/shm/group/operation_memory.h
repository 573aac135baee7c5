// A group's operations, posted and queued, and the memory of the arena that they and its messages hold.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "lockstep/shm/arena.h"
#include "lockstep/shm/group/point_to_point.h"
#include "lockstep/shm/layout.h"
#include "lockstep/shm/membership.h"
#include "lockstep/shm/paths/operation.h"

namespace lockstep::shm {

/// One rank's. Group has it, guards it with the engine's mutex and does the waiting.
class OperationMemory {
 public:
  /// Number of an operation of the group, counted from 1.
  using Sequence = uint64_t;

  OperationMemory(std::shared_ptr<Membership> members, Arena& arena, PointToPoint& messages);

  /// This rank has posted every operation up to here.
  Sequence issued() const { return issued_; }
  /// It has started every one up to here; those after issued() are queued.
  Sequence started() const { return issued_ + queued_.size(); }
  /// This rank has finished with every operation up to here.
  Sequence completed() const { return completed_; }
  void set_issued(Sequence last) { issued_ = last; }
  void set_completed(Sequence last) { completed_ = last; }
  /// In the order of their starts: with all before it.
  bool has_ended(Sequence sequence) const { return sequence <= completed_; }
  bool is_posted(Sequence sequence) const { return sequence <= issued_; }
  /// One of the last kSlots that were posted, or what is in the slot of the next.
  Operation& operator[](Sequence sequence) { return operations_[sequence % kSlots]; }
  const Operation& operator[](Sequence sequence) const { return operations_[sequence % kSlots]; }
  /// One that has been started and has not ended.
  const Operation& find(Sequence sequence) const;

  /// Where the next operation is described that has no slot yet.
  Operation& without_slot() { return without_slot_; }
  bool has_slot(const Operation& operation) const { return &operation != &without_slot_; }
  bool has_queued() const { return !queued_.empty(); }
  /// Has one that was posted, and uses the same memory, still to end before `operation` begins?
  bool must_wait(const Operation& operation) const;
  /// `operation` waits for a slot, for a window, or for one that must end before. Throws Error if a window may not be found for it.
  void queue(const Operation& operation);
  Operation& first_queued() { return queued_.front(); }
  /// Puts the first that is queued into its slot, which must be free.
  Operation& take_first_queued();

  /// Finds `operation`, the next to be posted, a window. False if there is none now: one will be free once what was
  /// posted before has ended, whatever other groups hold. Throws Error if there is no memory; not for what is queued.
  bool find_window(Operation& operation);
  /// Memory of the arena, where messages that have been received keep nothing back. Throws Error, which says why there
  /// is no room.
  std::byte* allocate(size_t bytes);
  void release_window(Operation& operation);
  /// The group ends or is broken. The peers may still read or write what operations in flight have in the
  /// arena, in windows and in tensors, whoever allocated those: it is handed out again once they cannot. What is queued
  /// is forgotten.
  void give_up();

 private:
  void populate_spare_window();
  std::function<bool()> unused_by_others() const;

  std::shared_ptr<Membership> members_;  // shared with memory that is released later
  Arena& arena_;
  PointToPoint& messages_;
  std::array<Operation, kSlots> operations_;
  Sequence issued_ = 0;
  Sequence completed_ = 0;
  std::list<Operation> queued_;
  Operation without_slot_;
  std::byte* spare_window_;  // in the group's control area
  bool is_spare_populated_ = false;
};

}  // namespace lockstep::shm
