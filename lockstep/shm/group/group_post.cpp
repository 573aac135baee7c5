// How a rank arrives at an operation.
#include <algorithm>

#include "lockstep/shm/group/group.h"
#include "lockstep/shm/paths/paths.h"

namespace lockstep::shm {

Operation& Group::begin(OpKind kind) {
  check_usable();
  if (!is_slot_free()) wait_for_slot();
  const Sequence sequence = issued_ + 1;
  Operation& operation = this->operation(sequence);
  operation = Operation{};
  operation.sequence = sequence;
  operation.what.kind = kind;
  return operation;
}

/// What the reductions have in common.
Operation& Group::begin_reduction(OpKind kind, void* data, size_t count, DType dtype, ReduceOp reduction) {
  Operation& operation = begin(kind);
  operation.what.dtype = static_cast<uint8_t>(dtype);
  operation.what.reduce_op = static_cast<uint8_t>(reduction);
  operation.what.count = count;
  operation.what.sent = count * element_size(dtype);
  operation.data = static_cast<std::byte*>(data);
  return operation;
}

Operation& Group::begin_exchange(const Exchange& exchange) {
  Operation& operation = begin(exchange.kind);
  operation.what.dtype = static_cast<uint8_t>(exchange.dtype);
  operation.what.root = static_cast<uint32_t>(exchange.root);
  operation.what.count = exchange.count;
  operation.what.sent = exchange.sent_bytes;
  operation.data = static_cast<std::byte*>(const_cast<void*>(exchange.sent));
  operation.copies = exchange.copies;
  operation.copy_count = exchange.copy_count;
  operation.late_copies = exchange.late_copies;
  return operation;
}

/// `begun`: begin()'s.
Group::Sequence Group::start(Operation& begun) {
  begun.what.memory = paths::memory_for(begun, arena_);
  Operation& operation = begun.what.memory == Memory::window ? with_window(begun) : begun;
  issued_ = operation.sequence;
  engine_.activate(*this);
  paths::offer(board_, operation);
  write_post(operation);
  // What follows takes its time while the post is on its way to the others.
  operation.flight_number = members_->recorder().start(operation.what, operation.sequence, operation.bytes());
  // The fence waits until the post has left this core. A small operation looks at the others' posts first, so
  // that they come meanwhile; before anything longer, sleepers are woken at once.
  const bool is_quick = operation.what.memory == Memory::post && completed_ + 1 == operation.sequence;
  if (!is_quick) announce(operation);
  advance_all(/*help=*/false);
  if (is_quick) announce(operation);
  return operation.sequence;
}

/// The last to arrive wakes those who sleep. The post and the loads of the others' posts and doorbells must
/// not change places, or a peer that falls asleep just now would sleep through the last arrival.
void Group::announce(const Operation& operation) {
  full_fence();
  if (operation.complete || board_.all_posted(operation)) members_->ring_sleepers();
}

/// All stores in one go: a peer that already polls the line would take it away in between.
void Group::write_post(const Operation& operation) const {
  Post& mine = board_.post_of(operation.sequence, rank());
  mine.what = operation.what;
  // release: what this rank offers, its slice and the announcement are written.
  mine.sequence.store(operation.sequence, std::memory_order_release);
}

/// `begun` with a window, for which other threads may start something while this one waits: then it moves on
/// to the next slot.
Operation& Group::with_window(const Operation& begun) {
  Operation moved = begun;
  moved.window = reserve_window(std::min(moved.what.sent, kWindowBytes));
  try {
    Operation& place = begin(moved.what.kind);
    moved.sequence = place.sequence;
    place = moved;
    return place;
  } catch (...) {
    arena_.release(moved.window);
    throw;
  }
}

}  // namespace lockstep::shm
