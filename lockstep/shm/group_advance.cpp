// How operations in flight go on, in whatever call comes next.
#include <cstring>
#include <string>
#include <utility>

#include "lockstep/shm/flight_recorder.h"
#include "lockstep/shm/group.h"

namespace lockstep::shm {

void Group::advance_all(bool help) {
  messages_.progress();
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    Operation& current = operation(s);
    if (!current.complete && !advance(current, help) && current.path == Path::undecided)
      break;  // nor has any later one arrived
  }
  Sequence last = completed_;
  while (last != issued_ && operation(last + 1).complete) ++last;
  if (last != completed_) {
    const bool wakes = is_a_peer_far_ahead(completed_);
    completed_ = last;
    // release: peers may reuse what those operations read.
    progress_[rank()].consumed.store(last, std::memory_order_release);
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
    if (m != rank() && post_of(ahead, m).sequence.load(std::memory_order_relaxed) >= ahead) return true;
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
  if (operation.path == Path::undecided) {
    if (!all_posted(operation)) return false;
    compare(operation);
    operation.path = path_of(operation);
    if (operation.path == Path::windowed) begin_windows(operation);
  }
  if (operation.path == Path::windowed) {
    if (!advance_windows(operation)) return false;
  } else if (operation.path == Path::direct) {
    const bool sliced = operation.is_sliced();
    if (!operation.own_part_done) {
      if (sliced) {
        reduce_chunks(operation, rank(), /*from_back=*/false);
      } else {
        execute_alone(operation);
        acknowledge(operation);
      }
      operation.own_part_done = true;
    }
    for (int step = 1; step < size() && help && sliced; ++step) {
      reduce_chunks(operation, (rank() + step) % size(), /*from_back=*/true);
    }
    if (!all_done(operation)) return false;
  } else {
    execute_alone(operation);  // what travels by copy needs nobody's confirmation
  }
  finish(operation);
  return true;
}

bool Group::all_posted(const Operation& operation) const {
  for (int m = 0; m < size(); ++m) {
    if (!has_posted(operation, m)) return false;
  }
  return true;
}

bool Group::has_posted(const Operation& operation, int member) const {
  // acquire: what the rank wrote before it arrived.
  return post_of(operation.sequence, member).sequence.load(std::memory_order_acquire) == operation.sequence;
}

bool Group::all_done(const Operation& operation) const {
  for (int m = 0; m < size(); ++m) {
    if (!has_done(operation, m)) return false;
  }
  return true;
}

/// Is the slice of `member` reduced? Or, in an operation without slices, has it read what this rank offers?
bool Group::has_done(const Operation& operation, int member) const {
  size_t wanted = 1;
  if (operation.path == Path::windowed) {
    wanted = operation.blocks;
  } else if (operation.is_sliced()) {
    wanted = chunk_count(slice_of_range({0, operation.bytes()}, member, size()).size());
  } else if (!waits_for(operation, member)) {
    return true;
  }
  // acquire: the results that others stored into this rank's buffer; or that they no longer read it.
  return slice_of(operation.sequence, member).done.load(std::memory_order_acquire) >= wanted;
}

/// Must this rank keep its buffer until `member` has read it?
bool Group::waits_for(const Operation& operation, int member) const {
  const int root = operation.root();
  switch (operation.what.kind) {
    case OpKind::broadcast:
    case OpKind::scatter:
      return rank() == root;
    case OpKind::gather:
      return member == root;
    default:
      return true;
  }
}

void Group::compare(const Operation& operation) {
  const auto same = [](const Announcement& a, const Announcement& b) {
    return a.kind == b.kind && a.dtype == b.dtype && a.reduce_op == b.reduce_op && a.root == b.root &&
           a.count == b.count;
  };
  for (int m = 0; m < size(); ++m) {
    if (same(post_of(operation.sequence, m).what, operation.what)) continue;
    // Every rank tells the same story, whichever it is: rank 0's call beside the first that differs from it.
    const auto call = [&](int member) {
      return "rank " + std::to_string(member) + " called " +
             describe(post_of(operation.sequence, member).what, operation.sequence);
    };
    int other = 1;
    while (same(post_of(operation.sequence, other).what, post_of(operation.sequence, 0).what)) ++other;
    members_->fail(FailureKind::mismatch,
                   "the ranks called different operations: " + call(0) + ", " + call(other) +
                       "; every rank of a group must call the same ones in the same order");
  }
}

/// From what all ranks announced, so that all come to the same.
Path Group::path_of(const Operation& operation) const {
  Path path = Path::staged;
  for (int m = 0; m < size(); ++m) {
    switch (post_of(operation.sequence, m).what.memory) {
      case Memory::post:
        return Path::inlined;
      case Memory::window:
        return Path::windowed;
      case Memory::arena:
        path = Path::direct;
        break;
      case Memory::none:
      case Memory::staging:
        break;
    }
  }
  return path;
}

void Group::finish(Operation& operation) {
  // A registered buffer elsewhere turned a reduction through staging into one in place: in the staging
  // buffer.
  const bool is_result_in_staging = operation.path == Path::direct && operation.staging != nullptr;
  if (is_result_in_staging && (operation.is_all_reduce() || operation.root() == rank())) {
    std::memcpy(operation.data, operation.staging, operation.what.sent);
  }
  if (operation.window != nullptr) arena_.release(std::exchange(operation.window, nullptr));
  operation.complete = true;
  engine_.wake_own_threads();
  members_->recorder().finish(operation.flight_number);
  // The next post goes into lines that the peers have read: fetch them for writing while there is time (the
  // second where a payload of this size needs it): 0.3 us where one is missing.
  const auto* const next = reinterpret_cast<const std::byte*>(&post_of(operation.sequence + 1, rank()));
  fetch_for_writing(next);
  if (operation.path == Path::inlined) {
    if (operation.bytes() > Post::kFirstLineBytes) fetch_for_writing(next + kCacheLine);
  } else {
    fetch_for_writing(&slice_of(operation.sequence + 1, rank()));
  }
}

}  // namespace lockstep::shm
