#include "lockstep/shm/group.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/shm/flight_recorder.h"

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
  const Operation& operation_;
};

}  // namespace

Group::Group(const Segment& segment, int area, std::vector<int> members, int rank, Arena& arena,
             std::chrono::milliseconds timeout)
    : members_(std::make_shared<Membership>(segment, area, std::move(members), rank)),
      arena_(arena),
      messages_(*members_, arena,
                segment.group_area(area) + GroupLayout(static_cast<size_t>(size())).channels),
      timeout_(timeout) {
  const GroupLayout layout(static_cast<size_t>(size()));
  std::byte* const base = segment.group_area(area);
  progress_ = reinterpret_cast<MemberProgress*>(base + layout.progress);
  posts_ = reinterpret_cast<Post*>(base + layout.posts);
  slices_ = reinterpret_cast<Slice*>(base + layout.slices);
  staging_ = base + layout.staging;
  members_->on_broken([this] { give_up_memory(); });
}

Group::~Group() {
  give_up_memory();
  members_->on_broken({});
  members_->leave();
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
  try {
    return arena_.allocate(bytes);
  } catch (const Error&) {
    messages_.release_received();
  }
  return arena_.allocate(bytes);
}

Group::Sequence Group::start_all_reduce(void* data, size_t count, DType dtype, Reduction reduction) {
  return start(begin_reduction(OpKind::all_reduce, data, count, dtype, reduction));
}

Group::Sequence Group::start_reduce(void* data, size_t count, DType dtype, Reduction reduction, int root) {
  Operation& operation = begin_reduction(OpKind::reduce, data, count, dtype, reduction);
  operation.what.root = static_cast<uint32_t>(root);
  return start(operation);
}

Group::Sequence Group::start_reduce_scatter(const void* input, void* output, size_t count, DType dtype,
                                            Reduction reduction) {
  Operation& operation = begin_reduction(OpKind::reduce_scatter, const_cast<void*>(input),
                                         count * static_cast<size_t>(size()), dtype, reduction);
  operation.output = static_cast<std::byte*>(output);
  return start(operation);
}

Group::Sequence Group::start_reduce_parts(void* data, size_t count, DType dtype, Reduction reduction,
                                          const Part* parts, size_t part_count) {
  Operation& operation = begin_reduction(OpKind::reduce_scatter, data, count, dtype, reduction);
  operation.what.root = 1;  // so that it matches no reduce_scatter of blocks
  operation.parts = parts;
  operation.part_count = part_count;
  return start(operation);
}

Group::Sequence Group::start_exchange(const Exchange& exchange) {
  Operation& operation = begin(exchange.kind);
  operation.what.dtype = static_cast<uint8_t>(exchange.dtype);
  operation.what.root = static_cast<uint32_t>(exchange.root);
  operation.what.count = exchange.count;
  operation.what.sent = exchange.sent_bytes;
  operation.data = static_cast<std::byte*>(const_cast<void*>(exchange.sent));
  operation.copies = exchange.copies;
  operation.copy_count = exchange.copy_count;
  operation.late_copies = exchange.late_copies;
  return start(operation);
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

Group::Sequence Group::start_barrier() { return start(begin(OpKind::barrier)); }

void Group::progress() {
  members_->check_broken();
  advance_all(/*help=*/false);
}

bool Group::is_complete(Sequence sequence) {
  // Also in a group that has broken since: what ended well ended well.
  if (has_ended(sequence)) return true;
  progress();
  return has_ended(sequence);
}

void Group::wait(Sequence sequence, std::chrono::milliseconds timeout) {
  if (has_ended(sequence)) return;
  members_->check_broken();
  Operation& target = operation(sequence);
  wait_for(
      [&] {
        // Most waits are for one operation that somebody has not reached yet: then looking costs one load.
        const bool alone = completed_ + 1 == sequence && messages_.is_idle();
        if (alone && target.path == Path::undecided && !all_posted(target)) return false;
        advance_all(/*help=*/true);
        return target.complete;
      },
      target, timeout);
}

void Group::start(PointToPoint::Request& request) {
  members_->check_broken();
  Announcement what{};
  what.kind = request.is_send ? OpKind::send : OpKind::recv;
  what.root = static_cast<uint32_t>(request.peer);
  what.count = request.bytes;
  request.flight_number = members_->recorder().start(what, request.tag, request.bytes);
  messages_.start(request, request.is_send && oldest_with_window() != nullptr);
}

void Group::wait(PointToPoint::Request& request, std::chrono::milliseconds timeout) {
  if (request.complete) return;
  members_->check_broken();
  class AwaitedMessage final : public Awaited {
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
  members_->wait_until(
      [&] {
        advance_all(/*help=*/true);
        return request.complete;
      },
      AwaitedMessage(*this, request), timeout);
}

template <class Ready>
void Group::wait_for(Ready ready, const Operation& operation, std::chrono::milliseconds timeout) {
  class AwaitedOperation final : public Awaited {
   public:
    AwaitedOperation(const Group& group, const Operation& operation) : group_(group), operation_(operation) {}
    bool needs(int member) const override {
      if (!group_.has_posted(operation_, member)) return true;
      // A rank that has arrived at an operation by copy has given all it has to give, and may end.
      if (operation_.path != Path::direct && operation_.path != Path::windowed) return false;
      // Any rank may have taken over an unfinished chunk.
      const bool shared = operation_.path == Path::direct && operation_.is_sliced();
      return shared ? !group_.all_done(operation_) : !group_.has_done(operation_, member);
    }
    std::string describe() const override { return shm::describe(operation_.what, operation_.sequence); }

   private:
    const Group& group_;
    const Operation& operation_;
  };
  members_->wait_until(ready, AwaitedOperation(*this, operation), timeout);
}

/// The slot is free once everyone has finished with what was in it before.
void Group::reserve_slot(Sequence sequence) {
  if (sequence <= kSlots || everyone_consumed(sequence - kSlots)) return;
  const Operation occupant = operation(sequence);
  // Also a member that has given all it has to give may have to end that operation for itself.
  const auto has_not_consumed = [&](int member) {
    return progress_[member].consumed.load(std::memory_order_relaxed) < occupant.sequence;
  };
  members_->wait_until(
      [&] {
        advance_all(/*help=*/true);
        return everyone_consumed(occupant.sequence);
      },
      AwaitedOf(has_not_consumed, occupant), timeout_);
}

const Operation* Group::oldest_with_window() const {
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    if (operation(s).window != nullptr) return &operation(s);
  }
  return nullptr;
}

/// Memory of this rank's arena. Where it has no room, what was started before and holds some comes first:
/// operations with windows, then messages that are still to be received.
std::byte* Group::reserve_window(size_t bytes) {
  while (true) {
    const Operation* const occupant = oldest_with_window();
    const bool messages_hold_some = messages_.holds_memory();
    try {
      return allocate(bytes);
    } catch (const Error&) {
      if (occupant == nullptr && !messages_hold_some) throw;
    }
    if (occupant != nullptr) {
      wait_for(
          [&] {
            advance_all(/*help=*/true);
            return occupant->complete;
          },
          *occupant, timeout_);
      continue;
    }
    const auto has_not_received = [&](int member) { return messages_.holds_memory_for(member); };
    std::byte* found = nullptr;
    members_->wait_until(
        [&] {
          advance_all(/*help=*/true);
          try {
            found = allocate(bytes);
          } catch (const Error&) {
            return !messages_.holds_memory();
          }
          return true;
        },
        AwaitedOf(has_not_received, operation(issued_ + 1)), timeout_);
    if (found != nullptr) return found;
  }
}

std::byte* Group::address_of(const Operation& operation, int member, size_t offset) const {
  Post& post = post_of(operation.sequence, member);
  if (operation.path == Path::inlined) return post.payload(post.what.sent) + offset;
  const size_t in_memory = post.what.memory == Memory::window ? offset % kWindowBytes : offset;
  return members_->segment().base() + post.what.offset + in_memory;
}

Range intersection(Range a, Range b) {
  const size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Range slice_of_range(Range whole, int member, int size) {
  const size_t lines = (whole.size() + kLine - 1) / kLine;
  const auto start = [&](size_t m) {
    return std::min(whole.begin + lines * m / static_cast<size_t>(size) * kLine, whole.end);
  };
  return {start(static_cast<size_t>(member)), start(static_cast<size_t>(member) + 1)};
}

}  // namespace lockstep::shm
