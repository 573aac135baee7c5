#include "lockstep/comm/shm/group.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "lockstep/comm/shm/flight_recorder.h"

namespace lockstep::shm {
namespace {

/// Unit of help: large enough that claiming it costs nothing, small enough for the second-level cache.
constexpr size_t kChunkBytes = 128 * 1024;

uint64_t pack(uint32_t front, uint32_t back) { return uint64_t{front} << 32 | back; }

size_t chunk_count(size_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

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
  members_->on_broken([this] { give_up_scratch(); });
}

Group::~Group() {
  give_up_scratch();
  members_->on_broken({});
  members_->leave();
}

/// The peers may still read or write what operations in flight have in the arena.
void Group::give_up_scratch() {
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    std::byte*& scratch = operation(s).scratch;
    if (scratch != nullptr) release_later(std::exchange(scratch, nullptr));
  }
  for (std::byte* scratch : messages_.take_scratch()) release_later(scratch);
}

void Group::release_later(std::byte* pointer) {
  arena_.release_later(pointer, [members = members_] { return members->all_others_have_stopped(); });
}

void Group::release(std::byte* pointer) {
  if (members_->is_broken()) {
    release_later(pointer);
  } else {
    arena_.release(pointer);
  }
}

// ---------------------------------------------------------------------------------------------- starting
// operations

Group::Sequence Group::start_all_reduce(void* data, size_t count, DType dtype, Reduction reduction) {
  return start(reduction_of(OpKind::all_reduce, data, count, dtype, reduction));
}

Group::Sequence Group::start_reduce(void* data, size_t count, DType dtype, Reduction reduction, int root) {
  Operation operation = reduction_of(OpKind::reduce, data, count, dtype, reduction);
  operation.what.root = static_cast<uint32_t>(root);
  return start(operation);
}

Group::Sequence Group::start_reduce_scatter(const void* input, void* output, size_t count, DType dtype,
                                            Reduction reduction) {
  Operation operation = reduction_of(OpKind::reduce_scatter, const_cast<void*>(input),
                                     count * static_cast<size_t>(size()), dtype, reduction);
  operation.output = static_cast<std::byte*>(output);
  return start(operation);
}

Group::Sequence Group::start_exchange(const Exchange& exchange) {
  Operation operation;
  operation.what.kind = exchange.kind;
  operation.what.dtype = static_cast<uint8_t>(exchange.dtype);
  operation.what.root = static_cast<uint32_t>(exchange.root);
  operation.what.count = exchange.count;
  operation.data = static_cast<std::byte*>(const_cast<void*>(exchange.sent));
  operation.sent_bytes = exchange.sent_bytes;
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

Group::Sequence Group::start_barrier() {
  Operation operation;
  operation.what.kind = OpKind::barrier;
  return start(operation);
}

Group::Sequence Group::start(const Operation& operation) {
  const Sequence sequence = post(operation);
  advance_all(/*help=*/false);
  return sequence;
}

Group::Operation Group::reduction_of(OpKind kind, void* data, size_t count, DType dtype,
                                     Reduction reduction) {
  Operation operation;
  operation.what.kind = kind;
  operation.what.dtype = static_cast<uint8_t>(dtype);
  operation.what.reduce_op = static_cast<uint8_t>(reduction);
  operation.what.count = count;
  operation.data = static_cast<std::byte*>(data);
  operation.sent_bytes = count * element_size(dtype);
  return operation;
}

Group::Sequence Group::post(Operation operation) {
  members_->check_broken();
  operation.sequence = issued_ + 1;
  reserve_slot(operation.sequence);

  const size_t size = bytes(operation);
  // Without a common size there is no other way that all ranks would choose.
  operation.path = operation.late_copies != nullptr ? Path::in_place
                   : size <= kInlineBytes           ? Path::inlined
                   : size <= kStagingBytes          ? Path::staged
                                                    : Path::in_place;
  Post& mine = post_of(operation.sequence, rank());
  Slice& slice = slice_of(operation.sequence, rank());
  const size_t sent = operation.sent_bytes;
  switch (operation.path) {
    case Path::inlined:
      if (sent > 0) std::memcpy(mine.payload, operation.data, sent);
      break;
    case Path::staged:
      if (sent > 0) {
        operation.what.offset = reserve_staging(operation.sequence);
        std::memcpy(members_->segment().base() + operation.what.offset, operation.data, sent);
      }
      break;
    case Path::in_place:
      if (sent > 0) {
        std::byte* shared = operation.data;
        if (!arena_.contains(shared, sent)) {
          shared = operation.scratch = arena_.allocate(sent);
          std::memcpy(shared, operation.data, sent);
        }
        operation.what.offset = static_cast<uint64_t>(shared - members_->segment().base());
      }
      break;
  }
  const Range range = slice_range(operation, rank());
  slice.unclaimed.store(pack(0, static_cast<uint32_t>(chunk_count(range.end - range.begin))),
                        std::memory_order_relaxed);
  slice.done.store(0, std::memory_order_relaxed);

  operation.flight_number = record_start(members_->segment(), members_->segment_rank(), members_->area(),
                                         operation.what, operation.sequence, size);

  issued_ = operation.sequence;
  mine.what = operation.what;
  // release: the buffer, the slice and the announcement are written.
  mine.sequence.store(operation.sequence, std::memory_order_release);
  // The store above and the loads of the doorbells below must not change places, or a peer that falls asleep
  // just now would sleep through the last arrival.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  this->operation(operation.sequence) = operation;
  if (all_posted(operation)) members_->ring_sleepers();
  return operation.sequence;
}

void Group::reserve_slot(Sequence sequence) {
  if (sequence <= kSlots || everyone_consumed(sequence - kSlots)) return;
  const Operation occupant = operation(sequence);
  wait_for(
      [&] {
        advance_all(/*help=*/true);
        return everyone_consumed(occupant.sequence);
      },
      occupant, timeout_);
}

size_t Group::reserve_staging(Sequence sequence) {
  size_t index = sequence % kHotStaging;
  if (everyone_consumed(staging_used_by_[index])) {
    staging_used_by_[index] = sequence;
  } else {
    index = kHotStaging + sequence % kSlots;  // free, since the slot is
  }
  const std::byte* buffer = staging_ + (static_cast<size_t>(rank()) * kStagingDepth + index) * kStagingBytes;
  return static_cast<size_t>(buffer - members_->segment().base());
}

bool Group::everyone_consumed(Sequence sequence) {
  if (sequence <= known_consumed_) return true;
  Sequence least = completed_;
  for (int m = 0; m < size(); ++m) {
    // acquire: that rank has read everything of the operations it reports as consumed.
    const Sequence theirs = progress_[m].consumed.load(std::memory_order_acquire);
    least = std::min(least, theirs);
  }
  known_consumed_ = least;
  return sequence <= known_consumed_;
}

// --------------------------------------------------------------------------------------------- advancing
// operations

void Group::progress() {
  members_->check_broken();
  advance_all(/*help=*/false);
}

bool Group::is_complete(Sequence sequence) {
  if (sequence <= completed_) return true;
  progress();
  return sequence <= completed_ || operation(sequence).complete;
}

void Group::wait(Sequence sequence, std::chrono::milliseconds timeout) {
  if (sequence <= completed_) return;
  members_->check_broken();
  Operation& target = operation(sequence);
  wait_for(
      [&] {
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
  request.flight_number = record_start(members_->segment(), members_->segment_rank(), members_->area(), what,
                                       request.tag, request.bytes);
  messages_.start(request);
}

void Group::wait(PointToPoint::Request& request, std::chrono::milliseconds timeout) {
  if (request.complete) return;
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

void Group::advance_all(bool help) {
  messages_.progress();
  for (Sequence s = completed_ + 1; s <= issued_; ++s) {
    Operation& current = operation(s);
    if (!current.complete && !advance(current, help) && !current.compared)
      break;  // nor has any later one arrived
  }
  Sequence last = completed_;
  while (last != issued_ && operation(last + 1).complete) ++last;
  if (last != completed_) {
    completed_ = last;
    // release: peers may reuse what those operations read.
    progress_[rank()].consumed.store(last, std::memory_order_release);
  }
}

bool Group::advance(Operation& operation, bool help) {
  if (!operation.compared) {
    if (!all_posted(operation)) return false;
    compare(operation);
    operation.compared = true;
  }
  const bool sliced = is_sliced(operation);
  if (!operation.own_part_done) {
    if (sliced) {
      reduce_chunks(operation, rank(), /*from_back=*/false);
    } else {
      execute_alone(operation);
      if (operation.path != Path::in_place) {
        finish(operation);  // what travelled by copy needs nobody's confirmation
        return true;
      }
      acknowledge(operation);
    }
    operation.own_part_done = true;
  }
  if (help && sliced) {
    for (int step = 1; step < size(); ++step) {
      reduce_chunks(operation, (rank() + step) % size(), /*from_back=*/true);
    }
  }
  if (!all_done(operation)) return false;
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
  if (is_sliced(operation)) {
    const Range range = slice_range(operation, member);
    wanted = chunk_count(range.end - range.begin);
  } else if (!waits_for(operation, member)) {
    return true;
  }
  // acquire: the results that others stored into this rank's buffer; or that they no longer read it.
  return slice_of(operation.sequence, member).done.load(std::memory_order_acquire) >= wanted;
}

/// Must this rank keep its buffer until `member` has read it?
bool Group::waits_for(const Operation& operation, int member) const {
  const int root = static_cast<int>(operation.what.root);
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
  const auto key = [](const Announcement& a) {
    return std::tuple(a.kind, a.dtype, a.reduce_op, a.root, a.count);
  };
  for (int m = 0; m < size(); ++m) {
    const Announcement theirs = post_of(operation.sequence, m).what;
    if (key(theirs) == key(operation.what)) continue;
    // Every rank tells the same story, whichever it is: rank 0's call beside the first that differs from it.
    const auto call = [&](int member) {
      return "rank " + std::to_string(member) + " called " +
             describe(post_of(operation.sequence, member).what, operation.sequence);
    };
    int other = 1;
    while (key(post_of(operation.sequence, other).what) == key(post_of(operation.sequence, 0).what)) ++other;
    members_->fail(FailureKind::mismatch,
                   "the ranks called different operations: " + call(0) + ", " + call(other) +
                       "; every rank of a group must call the same ones in the same order");
  }
}

/// The part of an operation that no other rank can take over: copying into memory of one's own, or reducing
/// there.
void Group::execute_alone(const Operation& operation) {
  switch (operation.what.kind) {
    case OpKind::all_reduce:
      return reduce_alone(operation, 0, operation.what.count, operation.data);
    case OpKind::reduce:
      if (static_cast<int>(operation.what.root) != rank()) return;
      return reduce_alone(operation, 0, operation.what.count, operation.data);
    case OpKind::reduce_scatter: {
      const size_t count = operation.what.count / static_cast<size_t>(size());
      return reduce_alone(operation, static_cast<size_t>(rank()) * count, count, operation.output);
    }
    default:
      break;
  }
  std::vector<Copy> late;
  if (operation.late_copies != nullptr) late = (*operation.late_copies)();
  const Copy* const copies = operation.late_copies != nullptr ? late.data() : operation.copies;
  const size_t copy_count = operation.late_copies != nullptr ? late.size() : operation.copy_count;
  for (size_t i = 0; i < copy_count; ++i) {
    const Copy& copy = copies[i];
    const std::byte* from = bytes_of(operation, copy.source) + copy.source_offset;
    if (copy.bytes > 0 && copy.destination != from) std::memcpy(copy.destination, from, copy.bytes);
  }
}

void Group::reduce_alone(const Operation& operation, size_t first, size_t count, void* destination) const {
  if (count == 0) return;
  const auto dtype = static_cast<DType>(operation.what.dtype);
  const void* sources[kMaxRanks];
  for (int m = 0; m < size(); ++m) sources[m] = bytes_of(operation, m) + first * element_size(dtype);
  shm::reduce(dtype, static_cast<Reduction>(operation.what.reduce_op), sources, static_cast<size_t>(size()),
              &destination, 1, count);
}

void Group::acknowledge(const Operation& operation) {
  // release: this rank no longer reads its peers' buffers.
  slice_of(operation.sequence, rank()).done.store(1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  members_->ring_sleepers();
}

void Group::reduce_chunks(const Operation& operation, int owner, bool from_back) {
  Slice& slice = slice_of(operation.sequence, owner);
  const Range range = slice_range(operation, owner);
  const auto dtype = static_cast<DType>(operation.what.dtype);
  const size_t element = element_size(dtype);
  uint32_t finished = 0;
  uint64_t unclaimed = slice.unclaimed.load(std::memory_order_relaxed);
  while (true) {
    auto front = static_cast<uint32_t>(unclaimed >> 32);
    auto back = static_cast<uint32_t>(unclaimed);
    if (front >= back) break;
    const uint32_t chunk = from_back ? back - 1 : front;
    const uint64_t rest = from_back ? pack(front, back - 1) : pack(front + 1, back);
    if (!slice.unclaimed.compare_exchange_weak(unclaimed, rest, std::memory_order_relaxed)) continue;
    unclaimed = rest;
    const size_t begin = range.begin + chunk * kChunkBytes;
    const size_t end = std::min(begin + kChunkBytes, range.end);
    const void* sources[kMaxRanks];
    void* destinations[kMaxRanks];
    for (int m = 0; m < size(); ++m) {
      destinations[m] = const_cast<std::byte*>(bytes_of(operation, m)) + begin;
      sources[m] = destinations[m];
    }
    const bool to_root = operation.what.kind == OpKind::reduce;
    void* const* const to = to_root ? &destinations[operation.what.root] : destinations;
    shm::reduce(dtype, static_cast<Reduction>(operation.what.reduce_op), sources, static_cast<size_t>(size()),
                to, to_root ? size_t{1} : static_cast<size_t>(size()), (end - begin) / element);
    ++finished;
  }
  if (finished == 0) return;
  // release: the results are in every rank's buffer.
  slice.done.fetch_add(finished, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (all_done(operation)) members_->ring_sleepers();
}

void Group::finish(Operation& operation) {
  if (operation.scratch != nullptr) {
    const bool has_result =
        operation.what.kind == OpKind::all_reduce ||
        (operation.what.kind == OpKind::reduce && static_cast<int>(operation.what.root) == rank());
    if (has_result) std::memcpy(operation.data, operation.scratch, operation.sent_bytes);
    arena_.release(operation.scratch);
    operation.scratch = nullptr;
  }
  operation.complete = true;
  record_finish(members_->segment(), members_->segment_rank(), operation.flight_number);
}

// ------------------------------------------------------------------------------------------------------------
// waiting

template <class Ready>
void Group::wait_for(Ready ready, const Operation& operation, std::chrono::milliseconds timeout) {
  class AwaitedOperation final : public Awaited {
   public:
    AwaitedOperation(const Group& group, const Operation& operation) : group_(group), operation_(operation) {}
    bool needs(int member) const override {
      if (!group_.has_posted(operation_, member)) return true;
      // A rank that has arrived at an operation by copy has given all it has to give, and may end.
      if (operation_.path != Path::in_place) return false;
      // Any rank may have taken over an unfinished chunk.
      return is_sliced(operation_) ? !group_.all_done(operation_) : !group_.has_done(operation_, member);
    }
    std::string describe() const override { return shm::describe(operation_.what, operation_.sequence); }

   private:
    const Group& group_;
    const Operation& operation_;
  };
  members_->wait_until(ready, AwaitedOperation(*this, operation), timeout);
}

// ----------------------------------------------------------------------------------------------------------
// addresses

Post& Group::post_of(Sequence sequence, int member) const {
  return posts_[(sequence % kSlots) * static_cast<size_t>(size()) + static_cast<size_t>(member)];
}

Slice& Group::slice_of(Sequence sequence, int member) const {
  return slices_[(sequence % kSlots) * static_cast<size_t>(size()) + static_cast<size_t>(member)];
}

const std::byte* Group::bytes_of(const Operation& operation, int member) const {
  const Post& post = post_of(operation.sequence, member);
  if (operation.path == Path::inlined) return reinterpret_cast<const std::byte*>(post.payload);
  return members_->segment().base() + post.what.offset;
}

Group::Range Group::slice_range(const Operation& operation, int member) const {
  if (!is_sliced(operation)) return {0, 0};
  const size_t total = bytes(operation);
  const size_t lines = (total + kLine - 1) / kLine;
  const auto start = [&](size_t m) {
    return std::min(lines * m / static_cast<size_t>(size()) * kLine, total);
  };
  return {start(static_cast<size_t>(member)), start(static_cast<size_t>(member) + 1)};
}

bool Group::is_sliced(const Operation& operation) {
  return operation.path == Path::in_place &&
         (operation.what.kind == OpKind::all_reduce || operation.what.kind == OpKind::reduce);
}

size_t Group::bytes(const Operation& operation) {
  return operation.what.count * element_size(static_cast<DType>(operation.what.dtype));
}

}  // namespace lockstep::shm
