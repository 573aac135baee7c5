#include "lockstep/shm/group/group.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/shm/flight_recorder.h"
#include "lockstep/shm/paths/paths.h"

namespace lockstep::shm {
namespace {

/// Something of each member that `needs` names.
template <class Needs>
class AwaitedOf final : public Awaited {
 public:
  AwaitedOf(Needs needs, const Operation& operation) : needs_(std::move(needs)), operation_(operation) {}
  bool needs(int member) const override { return needs_(member); }
  std::string describe() const override { return shm::describe(operation_.what, operation_.sequence); }

 private:
  Needs needs_;
  Operation operation_;
};

}  // namespace

/// The end of one of a group's operations.
class Group::AwaitedOperation final : public Awaited {
 public:
  AwaitedOperation(const Group& group, Sequence sequence) : group_(group), sequence_(sequence) {}
  bool needs(int member) const override {
    if (group_.ended(sequence_)) return false;
    const Operation& operation = group_.operation(sequence_);
    return !group_.board_.has_posted(operation, member) || paths::needs(group_.board_, operation, member);
  }
  std::string describe() const override { return shm::describe(group_.operation(sequence_).what, sequence_); }
  uint64_t sequence() const override { return sequence_; }

 private:
  const Group& group_;
  Sequence sequence_;
};

/// The end of one of its messages.
class Group::AwaitedMessage final : public Awaited {
 public:
  AwaitedMessage(Group& group, const PointToPoint::Request& request) : group_(group), request_(request) {}
  bool needs(int member) const override {
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
    return shm::describe(what, request_.tag);
  }

 private:
  Group& group_;
  const PointToPoint::Request& request_;
};

Group::Group(Node& node, int area, std::vector<int> members, int rank, std::chrono::milliseconds timeout)
    : engine_(node.engine()),
      oversubscribed_(node.segment().header().ranks > node.segment().header().cores),
      members_(std::make_shared<Membership>(node.segment(), node.peers(), area, std::move(members), rank)),
      board_(*members_),
      arena_(node.arena()),
      messages_(*members_, engine_, arena_,
                node.segment().group_area(area) + GroupLayout(static_cast<size_t>(size())).channels),
      timeout_(timeout) {
  members_->on_broken([this] {
    give_up_memory();
    engine_.wake_own_threads();
  });
  const auto lock = enter();
  engine_.attach(*this);
}

void Group::close() {
  if (members_->is_copy()) return;
  const Engine::Lock lock(engine_.mutex());
  if (!left_) members_->close(issued_ + 1);
}

void Group::leave() {
  if (members_->is_copy()) return;
  {
    const Engine::Lock lock(engine_.mutex());
    if (!std::exchange(left_, true)) {
      engine_.detach(*this);
      give_up_memory();
      members_->on_broken({});
      members_->leave();
      engine_.wake_own_threads();
    }
  }
  // Threads that wait here look at this object once more before they go.
  const auto nobody_waits = [this] {
    const Engine::Lock lock(engine_.mutex());
    return waiting_ == 0;
  };
  while (!nobody_waits()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

Engine::Lock Group::enter() const {
  members_->check_process();
  return Engine::Lock(engine_.mutex());
}

void Group::check_usable() {
  if (left_) throw Error("the process group of this operation was destroyed before the operation had ended");
  members_->check_broken();
}

bool Group::has_stopped() const {
  const auto lock = enter();
  return left_ || members_->is_broken();
}

/// The peers may still read or write what operations in flight have in the arena, in windows and in tensors,
/// whoever allocated those.
void Group::give_up_memory() {
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    Operation& operation = this->operation(s);
    if (operation.complete) continue;
    if (operation.window != nullptr) release_later(std::exchange(operation.window, nullptr));
    if (operation.what.memory == Memory::arena) {
      arena_.keep(operation.data, operation.what.sent, unused_by_others());
    }
  }
  for (std::byte* scratch : messages_.take_scratch()) release_later(scratch);
}

void Group::release_later(std::byte* pointer) { arena_.release_later(pointer, unused_by_others()); }

std::function<bool()> Group::unused_by_others() const {
  return [members = members_] { return members->all_others_have_stopped(); };
}

std::byte* Group::allocate(size_t bytes) {
  const auto lock = enter();
  if (std::byte* const found = try_allocate_unlocked(bytes)) return found;
  return arena_.allocate(bytes);  // which says why not
}

std::byte* Group::try_allocate_unlocked(size_t bytes) {
  if (std::byte* const found = arena_.try_allocate(bytes)) return found;
  messages_.release_received();
  return arena_.try_allocate(bytes);
}

Group::Sequence Group::start_all_reduce(void* data, size_t count, DType dtype, ReduceOp reduction) {
  const auto lock = enter();
  return start(begin_reduction(OpKind::all_reduce, data, count, dtype, reduction));
}

void Group::all_reduce(void* data, size_t count, DType dtype, ReduceOp reduction,
                       std::chrono::milliseconds timeout) {
  const auto lock = enter();
  wait_for_end(start(begin_reduction(OpKind::all_reduce, data, count, dtype, reduction)), timeout,
               AfterTimeout::broken);
}

Group::Sequence Group::start_reduce(void* data, size_t count, DType dtype, ReduceOp reduction, int root) {
  const auto lock = enter();
  Operation& operation = begin_reduction(OpKind::reduce, data, count, dtype, reduction);
  operation.what.root = static_cast<uint32_t>(root);
  return start(operation);
}

Group::Sequence Group::start_reduce_scatter(const void* input, void* output, size_t count, DType dtype,
                                            ReduceOp reduction) {
  const auto lock = enter();
  Operation& operation = begin_reduction(OpKind::reduce_scatter, const_cast<void*>(input),
                                         count * static_cast<size_t>(size()), dtype, reduction);
  operation.output = static_cast<std::byte*>(output);
  return start(operation);
}

Group::Sequence Group::start_reduce_parts(void* data, size_t count, DType dtype, ReduceOp reduction,
                                          const Part* parts, size_t part_count) {
  const auto lock = enter();
  Operation& operation = begin_reduction(OpKind::reduce_scatter, data, count, dtype, reduction);
  operation.what.root = 1;  // so that it matches no reduce_scatter of blocks
  operation.parts = parts;
  operation.part_count = part_count;
  return start(operation);
}

Group::Sequence Group::start_exchange(const Exchange& exchange) {
  const auto lock = enter();
  return start(begin_exchange(exchange));
}

void Group::exchange(const Exchange& exchange, std::chrono::milliseconds timeout) {
  const auto lock = enter();
  wait_for_end(start(begin_exchange(exchange)), timeout, AfterTimeout::broken);
}

void Group::broadcast(void* data, size_t count, DType dtype, int root, std::chrono::milliseconds timeout) {
  const size_t size_bytes = count * element_size(dtype);
  const Copy copy{root, 0, data, size_bytes};
  const bool is_root = root == rank();
  exchange({.kind = OpKind::broadcast,
            .dtype = dtype,
            .count = count,
            .root = root,
            .sent = data,
            .sent_bytes = is_root ? size_bytes : 0,
            .copies = &copy,
            .copy_count = is_root ? size_t{0} : size_t{1}},
           timeout);
}

Group::Sequence Group::start_barrier() {
  const auto lock = enter();
  return start(begin(OpKind::barrier));
}

void Group::barrier(std::chrono::milliseconds timeout) {
  const auto lock = enter();
  wait_for_end(start(begin(OpKind::barrier)), timeout, AfterTimeout::broken);
}

void Group::progress() {
  const auto lock = enter();
  check_usable();
  advance_all(/*help=*/false);
  engine_.advance_others(*this);
}

bool Group::has_ended(Sequence sequence) const {
  const auto lock = enter();
  return ended(sequence);
}

bool Group::is_complete(Sequence sequence) {
  // Also in a group that has broken since: what ended well ended well.
  if (has_ended(sequence)) return true;
  progress();
  return has_ended(sequence);
}

void Group::wait(Sequence sequence, std::chrono::milliseconds timeout, AfterTimeout after) {
  const auto lock = enter();
  wait_for_end(sequence, timeout, after);
}

void Group::wait_for_end(Sequence sequence, std::chrono::milliseconds timeout, AfterTimeout after) {
  if (ended(sequence)) return;
  check_usable();
  wait_until(
      [&] {
        if (ended(sequence)) return true;
        // Most waits are for one operation that somebody has not reached yet: then looking costs one load.
        const Operation& target = operation(sequence);
        const bool alone = completed_ + 1 == sequence && messages_.is_idle();
        if (alone && !target.has_path() && !board_.all_posted(target)) return false;
        advance_all(/*help=*/true);
        return ended(sequence);
      },
      AwaitedOperation(*this, sequence), timeout, after);
}

void Group::start(PointToPoint::Request& request) {
  const auto lock = enter();
  check_usable();
  Announcement what{};
  what.kind = request.is_send ? OpKind::send : OpKind::recv;
  what.root = static_cast<uint32_t>(request.peer);
  what.count = request.bytes;
  request.flight_number = members_->recorder().start(what, request.tag, request.bytes);
  messages_.start(request, request.is_send && oldest_with_window() != 0);
  if (!request.complete) engine_.activate(*this);
}

bool Group::has_ended(const PointToPoint::Request& request) const {
  const auto lock = enter();
  return request.complete;
}

bool Group::is_complete(const PointToPoint::Request& request) {
  if (has_ended(request)) return true;
  progress();
  return has_ended(request);
}

void Group::cancel(const PointToPoint::Request& request) {
  if (members_->is_copy()) return;
  const Engine::Lock lock(engine_.mutex());
  messages_.cancel(request);
}

void Group::wait(PointToPoint::Request& request, std::chrono::milliseconds timeout, AfterTimeout after) {
  const auto lock = enter();
  if (request.complete) return;
  check_usable();
  refuse_without_own_send(request);
  wait_until(
      [&] {
        if (!request.complete) advance_all(/*help=*/true);
        return request.complete;
      },
      AwaitedMessage(*this, request), timeout, after);
}

/// This thread is the one that would have to send.
void Group::refuse_without_own_send(PointToPoint::Request& request) {
  if (!messages_.lacks_own_send(request)) return;
  advance_all(/*help=*/false);
  if (!messages_.lacks_own_send(request)) return;
  messages_.give_up(request);
  throw ValueError("recv from this rank itself (rank " + std::to_string(rank()) + ", tag " +
                   std::to_string(request.tag) +
                   "): it has sent itself no such message, so the wait would not end; start the isend before "
                   "you wait for the receive");
}

bool Group::look(Sequence sequence, std::chrono::milliseconds waited, std::chrono::milliseconds timeout) {
  const auto lock = enter();
  if (ended(sequence)) return true;
  check_usable();
  members_->check(AwaitedOperation(*this, sequence), waited >= timeout, timeout, /*breaks=*/true);
  return ended(sequence);
}

bool Group::look(const PointToPoint::Request& request, std::chrono::milliseconds waited,
                 std::chrono::milliseconds timeout) {
  const auto lock = enter();
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
        if (left_ || members_->is_broken()) check_usable();  // another thread has left it, or seen it fail
        return ready();
      },
      [&](bool timed_out) {
        members_->check(awaited, timed_out, timeout, /*breaks=*/after == AfterTimeout::broken);
      },
      timeout);
}

/// The next operation's slot is free once everyone has finished with what was in it before.
void Group::wait_for_slot() {
  const Operation occupant = operation(issued_ + 1);
  // Also a member that has given all it has to give may have to end that operation for itself.
  const auto has_not_consumed = [&](int member) { return !board_.has_consumed(member, occupant.sequence); };
  wait_until(
      [&] {
        advance_all(/*help=*/true);
        return is_slot_free();
      },
      AwaitedOf(has_not_consumed, occupant), timeout());
}

/// 0 where there is none.
Group::Sequence Group::oldest_with_window() const {
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    if (operation(s).window != nullptr) return s;
  }
  return 0;
}

/// Memory of this rank's arena. Where it has no room, what was started before and holds some comes first:
/// operations with windows, then messages that are still to be received.
std::byte* Group::reserve_window(size_t bytes) {
  while (true) {
    const Sequence occupant = oldest_with_window();
    const bool messages_hold_some = messages_.holds_memory();
    if (std::byte* const found = try_allocate_unlocked(bytes)) return found;
    if (occupant != 0) {
      wait_for_end(occupant, timeout(), AfterTimeout::broken);
      continue;
    }
    if (!messages_hold_some) return arena_.allocate(bytes);  // which says why not
    const auto has_not_received = [&](int member) { return messages_.holds_memory_for(member); };
    std::byte* found = nullptr;
    wait_until(
        [&] {
          advance_all(/*help=*/true);
          found = try_allocate_unlocked(bytes);
          return found != nullptr || !messages_.holds_memory();
        },
        AwaitedOf(has_not_received, operation(issued_ + 1)), timeout());
    if (found != nullptr) return found;
  }
}

}  // namespace lockstep::shm
