// How operations in flight go on, in whatever call comes next.
#include <string>
#include <utility>

#include "lockstep/shm/flight_recorder.h"
#include "lockstep/shm/group/group.h"
#include "lockstep/shm/paths/paths.h"

namespace lockstep::shm {

void Group::advance_all(bool help) {
  if (!messages_.is_idle()) messages_.progress();  // a call less where there is no message
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    Operation& current = operation(s);
    if (!current.complete && !advance(current, help) && !current.has_path())
      break;  // nor has any later one arrived
  }
  Sequence last = completed_;
  while (last != issued_ && operation(last + 1).complete) ++last;
  if (last != completed_) {
    const bool wakes = is_a_peer_far_ahead(completed_);
    completed_ = last;
    board_.set_consumed(last);
    if (wakes) {
      full_fence();
      members_->ring_sleepers();
    }
  }
}

/// May a peer wait until this rank has consumed operation `of` + 1, whose slot it needs? It has posted as
/// many as there are slots after that one then; half of them count, so that what this rank cannot see yet
/// makes no difference: nobody posts the other half and falls asleep while a store of this rank is on its
/// way. A fence for each operation, which would do too, costs more than this look at lines that lie in the
/// cache.
bool Group::is_a_peer_far_ahead(Sequence of) const {
  const Sequence ahead = of + kSlots / 2;
  for (int m = 0; m < size(); ++m) {
    if (m != rank() && board_.post_of(ahead, m).sequence.load(std::memory_order_relaxed) >= ahead)
      return true;
  }
  return false;
}

bool Group::advance_for_others(bool thorough) noexcept {
  if (members_->is_broken()) return false;
  try {
    if (members_->notice_failure()) return false;
    if (thorough) messages_.make_room();
    advance_all(/*help=*/true);
  } catch (...) {
    // Whoever waits in this group gets it from the membership.
  }
  return completed_ != issued_ || !messages_.is_idle();
}

bool Group::advance(Operation& operation, bool help) {
  if (!operation.has_path()) {
    if (!board_.all_posted(operation)) return false;
    compare(operation);
    operation.path = paths::path_of(board_, operation);
  }
  if (!paths::advance(board_, operation, help)) return false;
  finish(operation);
  return true;
}

void Group::compare(const Operation& operation) {
  const auto same = [](const Announcement& a, const Announcement& b) {
    return a.kind == b.kind && a.dtype == b.dtype && a.reduce_op == b.reduce_op && a.root == b.root &&
           a.count == b.count;
  };
  for (int m = 0; m < size(); ++m) {
    if (same(board_.post_of(operation.sequence, m).what, operation.what)) continue;
    // Every rank tells the same story, whichever it is: rank 0's call beside the first that differs from it.
    const auto call = [&](int member) {
      return "rank " + std::to_string(member) + " called " +
             describe(board_.post_of(operation.sequence, member).what, operation.sequence);
    };
    int other = 1;
    while (same(board_.post_of(operation.sequence, other).what, board_.post_of(operation.sequence, 0).what))
      ++other;
    members_->fail(FailureKind::mismatch,
                   "the ranks called different operations: " + call(0) + ", " + call(other) +
                       "; every rank of a group must call the same ones in the same order");
  }
}

void Group::finish(Operation& operation) {
  paths::finish(board_, operation);
  if (operation.window != nullptr) arena_.release(std::exchange(operation.window, nullptr));
  operation.complete = true;
  engine_.wake_own_threads();
  members_->recorder().finish(operation.flight_number);
}

}  // namespace lockstep::shm
