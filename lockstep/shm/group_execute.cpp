// What a rank does for an operation: copying and reducing.
#include <algorithm>
#include <cstring>

#include "lockstep/shm/group.h"

namespace lockstep::shm {
namespace {

/// Unit of help: large enough that claiming it costs nothing, small enough for the second-level cache.
constexpr size_t kChunkBytes = 128 * 1024;

uint64_t pack(uint32_t front, uint32_t back) { return uint64_t{front} << 32 | back; }

}  // namespace

size_t chunk_count(size_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

uint64_t unclaimed_chunks(Range slice) { return pack(0, static_cast<uint32_t>(chunk_count(slice.size()))); }

/// The part of an operation that no other rank can take over: copying into memory of one's own, or reducing
/// there.
void Group::execute_alone(Operation& operation) {
  switch (operation.what.kind) {
    case OpKind::all_reduce:
      return reduce_alone(operation, 0, operation.what.count, operation.data);
    case OpKind::reduce:
      if (operation.root() != rank()) return;
      return reduce_alone(operation, 0, operation.what.count, operation.data);
    case OpKind::reduce_scatter:
      return reduce_own_blocks(operation, {0, operation.bytes()});
    default:
      break;
  }
  const auto [copies, copy_count] = copies_of(operation);
  for (size_t i = 0; i < copy_count; ++i) {
    const Copy& copy = copies[i];
    if (copy.bytes == 0) continue;
    const std::byte* const from = address_of(operation, copy.source, copy.source_offset);
    if (copy.destination != from) std::memcpy(copy.destination, from, copy.bytes);
  }
}

std::pair<const Copy*, size_t> Group::copies_of(Operation& operation) {
  if (operation.late_copies != nullptr) {
    std::vector<Copy>& late = late_copies_[operation.sequence % kSlots];
    late = (*operation.late_copies)();
    operation.late_copies = nullptr;
    operation.copies = late.data();
    operation.copy_count = late.size();
  }
  return {operation.copies, operation.copy_count};
}

/// What a reduce_scatter leaves at this rank, as far as it lies `within` a part of what the ranks send.
void Group::reduce_own_blocks(const Operation& operation, Range within) const {
  const auto reduce_block = [&](Range block, std::byte* destination) {
    const Range wanted = intersection(within, block);
    reduce_alone(operation, wanted.begin / operation.element(), wanted.size() / operation.element(),
                 destination + (wanted.begin - block.begin));
  };
  if (operation.output != nullptr) {
    const size_t bytes = operation.bytes() / static_cast<size_t>(size());
    const size_t first = static_cast<size_t>(rank()) * bytes;
    return reduce_block({first, first + bytes}, operation.output);
  }
  for (size_t i = 0; i < operation.part_count; ++i) {
    const Part& part = operation.parts[i];
    const size_t first = part.first * operation.element();
    reduce_block({first, first + part.count * operation.element()}, operation.data + first);
  }
}

void Group::reduce_alone(const Operation& operation, size_t first, size_t count, void* destination) const {
  if (count == 0) return;
  const size_t offset = first * operation.element();
  if (size() == 1) {
    std::byte* const own = operation.data + offset;
    if (destination != own) std::memcpy(destination, own, count * operation.element());
    return;
  }
  const void* sources[kMaxRanks];
  // This rank's part where it lies: what it has just put elsewhere would first have to leave the store
  // buffer.
  for (int m = 0; m < size(); ++m) {
    sources[m] = m == rank() ? operation.data + offset : address_of(operation, m, offset);
  }
  shm::reduce(static_cast<DType>(operation.what.dtype), static_cast<ReduceOp>(operation.what.reduce_op),
              sources, static_cast<size_t>(size()), &destination, 1, count);
}

void Group::acknowledge(const Operation& operation) {
  // release: this rank no longer reads its peers' buffers.
  slice_of(operation.sequence, rank()).done.store(1, std::memory_order_release);
  full_fence();
  members_->ring_sleepers();
}

void Group::reduce_chunks(const Operation& operation, int owner, bool from_back) {
  Slice& slice = slice_of(operation.sequence, owner);
  const Range range = slice_of_range({0, operation.bytes()}, owner, size());
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
    reduce_range(operation, {begin, std::min(begin + kChunkBytes, range.end)});
    ++finished;
  }
  if (finished == 0) return;
  // release: the results are in every rank's buffer.
  slice.done.fetch_add(finished, std::memory_order_release);
  full_fence();
  if (all_done(operation)) members_->ring_sleepers();
}

/// Reduces a part of everybody's buffer into everybody's, or the root's.
void Group::reduce_range(const Operation& operation, Range range) const {
  if (size() == 1) return;  // it lies where it belongs
  const void* sources[kMaxRanks];
  void* destinations[kMaxRanks];
  for (int m = 0; m < size(); ++m) {
    // What passes through a window need not do so on this rank itself.
    const bool own = m == rank() && operation.path == Path::windowed;
    destinations[m] = own ? operation.data + range.begin : address_of(operation, m, range.begin);
    sources[m] = destinations[m];
  }
  const bool to_root = !operation.is_all_reduce();
  void* const* const to = to_root ? &destinations[operation.root()] : destinations;
  shm::reduce(static_cast<DType>(operation.what.dtype), static_cast<ReduceOp>(operation.what.reduce_op),
              sources, static_cast<size_t>(size()), to, to_root ? size_t{1} : static_cast<size_t>(size()),
              range.size() / operation.element());
}

}  // namespace lockstep::shm
