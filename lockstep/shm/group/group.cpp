#include "lockstep/shm/group/group.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/shm/flight_recorder.h"
#include "lockstep/shm/paths/paths.h"
#include "lockstep/shm/process.h"

namespace lockstep::shm {

/// The end of one of a group's operations.
class Group::AwaitedOperation final : public Awaited {
 public:
  AwaitedOperation(const Group& group, Sequence sequence) : group_(group), sequence_(sequence) {}
  bool needs(int member) const override {
    if (operations().has_ended(sequence_)) return false;
    if (operations().is_posted(sequence_)) return is_needed_for(next_to_end(), member);
    return holds_slot_back(member) || (has_incomplete() && is_needed_for(oldest(), member));
  }
  std::string describe() const override {
    if (operations().is_posted(sequence_)) return describe(next_to_end());
    const Sequence before = queued_behind();
    if (before == 0) return describe(sequence_);
    return fmt::format("{}, which is queued behind {},", describe(sequence_), describe(before));
  }
  uint64_t sequence() const override { return sequence_; }

 private:
  // Whoever waits holds the engine's lock. That it is held as long as the references are used, clang 23 does not see.
  const OperationMemory& operations() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
    group_.engine_.mutex().assert_held();
    return group_.operations_;
  }
  const Board& board() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
    group_.engine_.mutex().assert_held();
    return group_.board_;
  }
  std::string describe(Sequence sequence) const {
    return shm::describe(operations().find(sequence).what, sequence);
  }
  bool is_needed_for(Sequence posted, int member) const {
    const Operation& operation = operations()[posted];
    return !board().has_posted(operation, member) || paths::needs(board(), operation, member);
  }
  /// The awaited operation, which is posted, or if it has only those before it to wait for the first of them.
  Sequence next_to_end() const {
    const bool is_complete = !operations().has_ended(sequence_) && operations()[sequence_].complete;
    return is_complete ? oldest() : sequence_;
  }
  bool has_incomplete() const { return operations().completed() < operations().issued(); }
  Sequence oldest() const { return operations().completed() + 1; }
  /// Has `member` still to end the operation in whose slot the first that is queued will be, although this rank has?
  /// It may have given all that it has to give.
  bool holds_slot_back(int member) const {
    if (operations().issued() < kSlots || operations().completed() < slot_before()) return false;
    return !board().has_consumed(member, slot_before());
  }
  Sequence slot_before() const { return operations().issued() + 1 - kSlots; }
  /// What must end before the first that is queued is posted; 0 if nothing must.
  Sequence queued_behind() const {
    for (int m = 0; m < group_.size(); ++m) {
      if (holds_slot_back(m)) return slot_before();
    }
    return has_incomplete() ? oldest() : 0;
  }

  const Group& group_;
  Sequence sequence_;
};

/// The end of one of its messages.
class Group::AwaitedMessage final : public Awaited {
 public:
  AwaitedMessage(Group& group, const PointToPoint::Request& request) : group_(group), request_(request) {}
  bool needs(int member) const override {
    group_.engine_.mutex().assert_held();  // by whoever waits
    const bool could_come_from_it = request_.peer == PointToPoint::kAnySource
                                        ? group_.members_->all_others_are_gone()
                                        : request_.peer == member;
    if (!could_come_from_it) return false;
    // What a rank sent just before it ended counts.
    group_.messages_.progress();
    return !request_.complete;
  }
  std::string describe() const override {
    Announcement what{};
    what.kind = request_.is_send ? OpKind::send : OpKind::recv;
    what.root = static_cast<uint32_t>(request_.peer);
    what.count = request_.bytes;
    group_.engine_.mutex().assert_held();
    const std::string own =
        group_.messages_.lacks_own_send(request_) ? ", which this rank has not sent itself," : "";
    return shm::describe(what, request_.tag) + own;
  }

 private:
  Group& group_;
  const PointToPoint::Request& request_;
};

Group::Group(Node& node, int area, std::vector<int> members, int rank, std::chrono::milliseconds timeout)
    : engine_(node.engine()),
      oversubscribed_(node.segment().header().ranks > node.segment().header().cores),
      shared_members_(
          std::make_shared<Membership>(node.segment(), node.peers(), area, std::move(members), rank)),
      members_(shared_members_.get()),
      ranks_(*members_),
      board_(*members_),
      arena_(node.arena()),
      messages_(*members_, engine_, arena_,
                node.segment().group_area(area) + GroupLayout(static_cast<size_t>(size())).channels),
      operations_(shared_members_, arena_, messages_),
      timeout_(timeout) {
  members_->on_broken([this]() LOCKSTEP_REQUIRES(engine_.mutex()) {
    operations_.give_up();
    engine_.wake_own_threads();
  });
  const Entered lock(*this);
  engine_.attach(*this);
}

void Group::expect_network() {
  const Entered lock(*this);
  oversubscribed_ = true;
}

void Group::close() {
  if (ranks_.is_copy()) return;
  const Engine::Lock lock(engine_.mutex());
  if (!left_) members_->close(operations_.started() + 1);
}

void Group::leave() { end_with(&Membership::leave); }

void Group::retire() { end_with(&Membership::clear_own_part); }

/// What is in flight ends, and `last` is what this rank does to the area.
void Group::end_with(void (Membership::*last)()) {
  if (ranks_.is_copy()) return;
  {
    const Engine::Lock lock(engine_.mutex());
    if (!std::exchange(left_, true)) {
      engine_.detach(*this);
      operations_.give_up();
      members_->on_broken({});
      (*members_.*last)();
      engine_.wake_own_threads();
    }
  }
  wait_for_waiting();
}

void Group::interrupt(const std::string& why) {
  if (ranks_.is_copy()) return;
  const Engine::Lock lock(engine_.mutex());
  if (left_) return;
  members_->interrupt(why);
  engine_.wake_own_threads();
}

/// Threads that wait here look at this object once more before they go.
void Group::wait_for_waiting() {
  const auto nobody_waits = [this] {
    const Engine::Lock lock(engine_.mutex());
    return waiting_ == 0;
  };
  while (!nobody_waits()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

Group::Entered::Entered(const Group& group) : mutex_(group.engine_.mutex()) {
  group.ranks_.check_process();
  mutex_.lock();
}

void Group::check_usable() {
  // One that has retired is both.
  if (left_ && !members_->is_broken()) {
    throw Error("the process group of this operation was destroyed before the operation had ended");
  }
  members_->check_broken();
}

int Group::find_rank_ahead() const {
  const Entered lock(*this);
  const Sequence next = operations_.started() + 1;
  for (int m = 0; m < size(); ++m) {
    if (m != rank() && board_.post_of(next, m).sequence.load(std::memory_order_acquire) >= next) return m;
  }
  return -1;
}

bool Group::has_stopped() const {
  const Entered lock(*this);
  return left_ || members_->is_broken();
}

std::byte* Group::allocate(size_t bytes) {
  const Entered lock(*this);
  return operations_.allocate(bytes);
}

Group::Sequence Group::start_all_reduce(void* data, size_t count, DType dtype, ReduceOp reduction) {
  const Entered lock(*this);
  return start(begin_reduction(OpKind::all_reduce, data, count, dtype, reduction));
}

void Group::all_reduce(void* data, size_t count, DType dtype, ReduceOp reduction,
                       std::chrono::milliseconds timeout) {
  const Entered lock(*this);
  wait_for_end(start(begin_reduction(OpKind::all_reduce, data, count, dtype, reduction)), timeout,
               AfterTimeout::broken);
}

Group::Sequence Group::start_reduce(void* data, size_t count, DType dtype, ReduceOp reduction, int root) {
  const Entered lock(*this);
  Operation& operation = begin_reduction(OpKind::reduce, data, count, dtype, reduction);
  operation.what.root = static_cast<uint32_t>(root);
  return start(operation);
}

Group::Sequence Group::start_reduce_scatter(const void* input, void* output, size_t count, DType dtype,
                                            ReduceOp reduction) {
  const Entered lock(*this);
  Operation& operation = begin_reduction(OpKind::reduce_scatter, const_cast<void*>(input),
                                         count * static_cast<size_t>(size()), dtype, reduction);
  operation.output = static_cast<std::byte*>(output);
  operation.output_bytes = count * element_size(dtype);
  return start(operation);
}

Group::Sequence Group::start_reduce_parts(void* data, size_t count, DType dtype, ReduceOp reduction,
                                          const Part* parts, size_t part_count) {
  const Entered lock(*this);
  Operation& operation = begin_reduction(OpKind::reduce_scatter, data, count, dtype, reduction);
  operation.what.root = 1;  // so that it matches no reduce_scatter of blocks
  operation.parts = parts;
  operation.part_count = part_count;
  return start(operation);
}

Group::Sequence Group::start_exchange(const Exchange& exchange) {
  const Entered lock(*this);
  return start(begin_exchange(exchange));
}

void Group::exchange(const Exchange& exchange, std::chrono::milliseconds timeout) {
  const Entered lock(*this);
  wait_for_end(start(begin_exchange(exchange)), timeout, AfterTimeout::broken);
}

Group::Sequence Group::start_barrier() {
  const Entered lock(*this);
  return start(begin(OpKind::barrier));
}

void Group::barrier(std::chrono::milliseconds timeout) {
  const Entered lock(*this);
  wait_for_end(start(begin(OpKind::barrier)), timeout, AfterTimeout::broken);
}

void Group::progress() {
  const Entered lock(*this);
  check_usable();
  advance_all(/*help=*/false);
  engine_.advance_others(*this);
}

bool Group::has_ended(Sequence sequence) const {
  const Entered lock(*this);
  return operations_.has_ended(sequence);
}

bool Group::is_complete(Sequence sequence) {
  // Also in a group that has broken since: what ended well ended well.
  if (has_ended(sequence)) return true;
  progress();
  return has_ended(sequence);
}

void Group::wait(Sequence sequence, std::chrono::milliseconds timeout, AfterTimeout after) {
  const Entered lock(*this);
  wait_for_end(sequence, timeout, after);
}

void Group::wait_for_started(std::chrono::milliseconds timeout, AfterTimeout after) {
  const Entered lock(*this);
  wait_for_end(operations_.started(), timeout, after);
}

void Group::wait_for_end(Sequence sequence, std::chrono::milliseconds timeout, AfterTimeout after) {
  if (operations_.has_ended(sequence)) return;
  check_usable();
  wait_until(
      [&] {
        engine_.mutex().assert_held();
        if (operations_.has_ended(sequence)) return true;
        // Most waits are for one operation that somebody has not reached yet: then looking costs one load.
        const Operation& target = operations_[sequence];
        const bool alone =
            operations_.completed() + 1 == sequence && messages_.is_idle() && !operations_.has_queued();
        if (alone && !target.has_path() && !board_.all_posted(target)) return false;
        advance_all(/*help=*/true);
        return operations_.has_ended(sequence);
      },
      AwaitedOperation(*this, sequence), timeout, after);
}

void Group::start(PointToPoint::Request& request) {
  const Entered lock(*this);
  check_usable();
  Announcement what{};
  what.kind = request.is_send ? OpKind::send : OpKind::recv;
  what.root = static_cast<uint32_t>(request.peer);
  what.count = request.bytes;
  request.flight_number = members_->recorder().start(what, request.tag, request.bytes);
  messages_.start(request);
  if (!request.complete) engine_.activate(*this);
}

bool Group::has_ended(const PointToPoint::Request& request) const {
  const Entered lock(*this);
  return request.complete;
}

bool Group::is_complete(const PointToPoint::Request& request) {
  if (has_ended(request)) return true;
  progress();
  return has_ended(request);
}

void Group::cancel(const PointToPoint::Request& request) {
  if (ranks_.is_copy()) return;
  const Engine::Lock lock(engine_.mutex());
  messages_.cancel(request);
}

int Group::find_sender(int source, uint64_t tag) {
  const Entered lock(*this);
  check_usable();
  return messages_.find_sender(source, tag);
}

void Group::wait(PointToPoint::Request& request, std::chrono::milliseconds timeout, AfterTimeout after) {
  const Entered lock(*this);
  if (request.complete) return;
  check_usable();
  // A wait with a timeout of its own ends anyway, and may be repeated.
  if (after == AfterTimeout::broken) refuse_without_own_send(request);
  wait_until(
      [&] {
        engine_.mutex().assert_held();
        if (!request.complete) advance_all(/*help=*/true);
        return request.complete;
      },
      AwaitedMessage(*this, request), timeout, after);
}

/// Where this thread is the only one, nobody could send while it waits. What another thread will do, nobody knows.
void Group::refuse_without_own_send(PointToPoint::Request& request) {
  if (!messages_.lacks_own_send(request)) return;
  advance_all(/*help=*/false);
  const size_t known_threads = engine_.has_progress_thread() ? 2 : 1;
  if (!messages_.lacks_own_send(request) || count_threads() != known_threads) return;
  messages_.give_up(request);
  throw ValueError(
      fmt::format("recv from this rank itself (rank {}, tag {}): it has sent itself no such message, so "
                  "the wait would not end; start the isend before you wait for the receive",
                  rank(), request.tag));
}

bool Group::look(Sequence sequence, std::chrono::milliseconds waited, std::chrono::milliseconds timeout) {
  const Entered lock(*this);
  if (operations_.has_ended(sequence)) return true;
  check_usable();
  members_->check(AwaitedOperation(*this, sequence), waited >= timeout, timeout, /*breaks=*/true);
  return operations_.has_ended(sequence);
}

bool Group::look(const PointToPoint::Request& request, std::chrono::milliseconds waited,
                 std::chrono::milliseconds timeout) {
  const Entered lock(*this);
  if (request.complete) return true;
  check_usable();
  members_->check(AwaitedMessage(*this, request), waited >= timeout, timeout, /*breaks=*/true);
  return request.complete;
}

template <class Ready>
void Group::wait_until(const Ready& ready, const Awaited& awaited, std::chrono::milliseconds timeout,
                       AfterTimeout after) {
  struct Inside {
    explicit Inside(int& waiting) : count(waiting) { ++count; }
    Inside(const Inside&) = delete;
    ~Inside() { --count; }  // with the engine's lock
    int& count;
  };
  const Inside inside(waiting_);
  engine_.wait_until(
      *this, oversubscribed_,
      [&] {
        engine_.mutex().assert_held();
        if (left_ || members_->is_broken()) check_usable();  // another thread has left it, or seen it fail
        return ready();
      },
      [&](bool timed_out) {
        engine_.mutex().assert_held();
        members_->check(awaited, timed_out, timeout, /*breaks=*/after == AfterTimeout::broken);
      },
      timeout);
}

// How a rank arrives at an operation.

Operation& Group::begin(OpKind kind) {
  check_usable();
  const Sequence sequence = operations_.started() + 1;
  const bool has_slot = !operations_.has_queued() && is_slot_free();
  Operation& operation = has_slot ? operations_[sequence] : operations_.without_slot();
  operation = Operation{};
  operation.sequence = sequence;
  operation.what.kind = kind;
  operation.together = together_.load(std::memory_order_relaxed);
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
  operation.output = static_cast<std::byte*>(exchange.late_destination);
  operation.output_bytes = exchange.late_bytes;
  return operation;
}

/// `operation`: begin()'s.
Group::Sequence Group::start(Operation& operation) {
  operation.what.memory = paths::memory_for(operation, arena_);
  if (!operations_.has_slot(operation) || operations_.must_wait(operation)) return queue(operation);
  if (operation.what.memory == Memory::window && !operations_.find_window(operation)) return queue(operation);
  post(operation);
  // The fence waits until the post has left this core. A small operation looks at the others' posts first, so
  // that they come meanwhile; before anything longer, sleepers are woken at once.
  const bool is_quick =
      operation.what.memory == Memory::post && operations_.completed() + 1 == operation.sequence;
  if (!is_quick) announce(operation);
  advance_all(/*help=*/false);
  if (is_quick) announce(operation);
  return operation.sequence;
}

Group::Sequence Group::queue(const Operation& operation) {
  const Sequence sequence = operation.sequence;
  operations_.queue(operation);
  engine_.activate(*this);
  advance_all(/*help=*/false);
  return sequence;
}

/// Posts what is queued, as far as there are slots and windows; true if that is something.
bool Group::post_queued() {
  bool has_posted = false;
  while (operations_.has_queued() && is_slot_free()) {
    Operation& first = operations_.first_queued();
    if (operations_.must_wait(first)) break;
    if (first.what.memory == Memory::window && !operations_.find_window(first)) break;
    Operation& operation = operations_.take_first_queued();
    post(operation);
    announce(operation);
    has_posted = true;
  }
  return has_posted;
}

/// `operation` is in its slot, with its window if it needs one.
void Group::post(Operation& operation) {
  operations_.set_issued(operation.sequence);
  engine_.activate(*this);
  paths::offer(board_, operation);
  write_post(operation);
  // What follows takes its time while the post is on its way to the others.
  operation.flight_number = members_->recorder().start(operation.what, operation.sequence, operation.bytes());
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

// How operations in flight go on, in whatever call comes next.

void Group::advance_all(bool help) {
  if (!messages_.is_idle()) messages_.progress();  // a call less where there is no message
  advance_posted(help);
  while (operations_.has_queued() && post_queued()) advance_posted(help);
}

void Group::advance_posted(bool help) {
  for (Sequence s = operations_.completed() + 1; s <= operations_.issued(); ++s) {
    Operation& current = operations_[s];
    if (!current.complete && !advance(current, help) && !current.has_path())
      break;  // nor has any later one arrived
  }
  Sequence last = operations_.completed();
  while (last != operations_.issued() && operations_[last + 1].complete) ++last;
  if (last != operations_.completed()) {
    const Sequence before = operations_.completed();
    operations_.set_completed(last);
    board_.set_consumed(last);
    // The look comes after the store, also for the compiler: this thread may lose its core between the two, for so long that a
    // peer posts all that it can and falls asleep.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (is_a_peer_far_ahead(before)) {
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
  return operations_.completed() != operations_.started() || !messages_.is_idle();
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
      engine_.mutex().assert_held();
      return fmt::format("rank {} called {}", member,
                         describe(board_.post_of(operation.sequence, member).what, operation.sequence));
    };
    int other = 1;
    while (same(board_.post_of(operation.sequence, other).what, board_.post_of(operation.sequence, 0).what))
      ++other;
    members_->fail(
        FailureKind::mismatch,
        fmt::format("the ranks called different operations: {}, {}; every rank of a group must call the "
                    "same ones in the same order",
                    call(0), call(other)));
  }
}

void Group::finish(Operation& operation) {
  paths::finish(board_, operation);
  operations_.release_window(operation);
  operation.complete = true;
  engine_.wake_own_threads();
  members_->recorder().finish(operation.flight_number);
}

void reduce(Group& group, void* data, size_t count, DType dtype, ReduceOp reduction, int root,
            std::chrono::milliseconds timeout) {
  group.wait(group.start_reduce(data, count, dtype, reduction, root), timeout);
}

void reduce_scatter(Group& group, const void* input, void* output, size_t count, DType dtype,
                    ReduceOp reduction, std::chrono::milliseconds timeout) {
  group.wait(group.start_reduce_scatter(input, output, count, dtype, reduction), timeout);
}

void broadcast(Group& group, void* data, size_t count, DType dtype, int root,
               std::chrono::milliseconds timeout) {
  const size_t bytes = count * element_size(dtype);
  const Copy copy{root, 0, data, bytes};
  const bool is_root = root == group.rank();
  group.exchange({.kind = OpKind::broadcast,
                  .dtype = dtype,
                  .count = count,
                  .root = root,
                  .sent = data,
                  .sent_bytes = is_root ? bytes : 0,
                  .copies = &copy,
                  .copy_count = is_root ? size_t{0} : size_t{1}},
                 timeout);
}

}  // namespace lockstep::shm
