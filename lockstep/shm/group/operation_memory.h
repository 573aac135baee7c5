// A group's operations in flight, and the memory of the arena that they and its messages hold.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "lockstep/shm/arena.h"
#include "lockstep/shm/group/point_to_point.h"
#include "lockstep/shm/layout.h"
#include "lockstep/shm/membership.h"
#include "lockstep/shm/paths/operation.h"

namespace lockstep::shm {

/// One rank's. Under the engine's lock; used by Group, which does the waiting.
class OperationMemory {
 public:
  /// Number of an operation of the group, counted from 1.
  using Sequence = uint64_t;

  OperationMemory(std::shared_ptr<Membership> members, Arena& arena, PointToPoint& messages)
      : members_(std::move(members)), arena_(arena), messages_(messages) {}

  Sequence issued() const { return issued_; }
  /// This rank has finished with every operation up to here.
  Sequence completed() const { return completed_; }
  void set_issued(Sequence last) { issued_ = last; }
  void set_completed(Sequence last) { completed_ = last; }
  bool has_ended(Sequence sequence) const {
    return sequence <= completed_ || operations_[sequence % kSlots].complete;
  }
  /// One of the last kSlots, or the next.
  Operation& operator[](Sequence sequence) { return operations_[sequence % kSlots]; }
  const Operation& operator[](Sequence sequence) const { return operations_[sequence % kSlots]; }

  /// The oldest in flight that has a window; 0 if none has.
  Sequence oldest_with_window() const;
  /// Memory of the arena, where messages that have been received keep nothing back; null if it has no room.
  std::byte* try_allocate(size_t bytes);
  /// Works like try_allocate(), but throws Error, which says why there is no room.
  std::byte* allocate(size_t bytes);
  void release_window(Operation& operation);
  /// The group ends or is broken. The peers may still read or write what operations in flight have in the
  /// arena, in windows and in tensors, whoever allocated those: it is handed out again once they cannot.
  void give_up();

 private:
  std::function<bool()> unused_by_others() const;

  std::shared_ptr<Membership> members_;  // shared with memory that is released later
  Arena& arena_;
  PointToPoint& messages_;
  std::array<Operation, kSlots> operations_;
  Sequence issued_ = 0;
  Sequence completed_ = 0;
};

}  // namespace lockstep::shm
