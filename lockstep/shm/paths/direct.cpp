#include "lockstep/shm/paths/direct.h"

#include <algorithm>
#include <cstring>

#include "lockstep/shm/paths/work.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm::direct {
namespace {

/// Unit of help: large enough that claiming it costs nothing, small enough for the second-level cache.
constexpr size_t kChunkBytes = 128 * 1024;

size_t chunk_count(size_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

uint64_t pack(uint32_t front, uint32_t back) { return uint64_t{front} << 32 | back; }

Range slice_range(const Board& board, const Operation& operation, int owner) {
  return slice_of_range({0, operation.bytes()}, owner, board.size());
}

/// Must this rank keep its buffer until `member` has read it?
bool is_reader(const Board& board, const Operation& operation, int member) {
  const int root = operation.root();
  switch (operation.what.kind) {
    case OpKind::broadcast:
    case OpKind::scatter:
      return board.rank() == root;
    case OpKind::gather:
      return member == root;
    default:
      return true;
  }
}

/// Is the slice of `member` reduced? Or, in an operation without slices, has it read what this rank offers?
bool has_done(const Board& board, const Operation& operation, int member) {
  size_t wanted = 1;
  if (operation.is_sliced()) {
    wanted = chunk_count(slice_range(board, operation, member).size());
  } else if (!is_reader(board, operation, member)) {
    return true;
  }
  // acquire: the results that others stored into this rank's buffer; or that they no longer read it.
  return board.slice_of(operation.sequence, member).done.load(std::memory_order_acquire) >= wanted;
}

bool all_done(const Board& board, const Operation& operation) {
  for (int m = 0; m < board.size(); ++m) {
    if (!has_done(board, operation, m)) return false;
  }
  return true;
}

void reduce_chunks(const Board& board, const Operation& operation, int owner, bool from_back) {
  Slice& slice = board.slice_of(operation.sequence, owner);
  const Range range = slice_range(board, operation, owner);
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
    reduce_range(board, operation, {begin, std::min(begin + kChunkBytes, range.end)},
                 board.address_of(operation, board.rank(), begin));
    ++finished;
  }
  if (finished == 0) return;
  // release: the results are in every rank's buffer.
  slice.done.fetch_add(finished, std::memory_order_release);
  full_fence();
  if (all_done(board, operation)) board.ring_sleepers();
}

void acknowledge(const Board& board, const Operation& operation) {
  // release: this rank no longer reads its peers' buffers.
  board.own_slice_of(operation).done.store(1, std::memory_order_release);
  full_fence();
  board.ring_sleepers();
}

}  // namespace

void offer(const Board& board, Operation& operation, const std::byte* place) {
  operation.what.offset = board.offset_of(place);
  const size_t chunks = chunk_count(slice_range(board, operation, board.rank()).size());
  board.own_slice_of(operation).unclaimed.store(pack(0, static_cast<uint32_t>(chunks)),
                                                std::memory_order_relaxed);
}

bool advance(Board& board, Operation& operation, bool help) {
  const bool sliced = operation.is_sliced();
  if (!operation.own_part_done) {
    if (sliced) {
      reduce_chunks(board, operation, board.rank(), /*from_back=*/false);
    } else {
      execute_alone(board, operation);
      acknowledge(board, operation);
    }
    operation.own_part_done = true;
  }
  for (int step = 1; step < board.size() && help && sliced; ++step) {
    reduce_chunks(board, operation, (board.rank() + step) % board.size(), /*from_back=*/true);
  }
  return all_done(board, operation);
}

void finish(const Board& board, const Operation& operation) {
  // A registered buffer elsewhere turned a reduction through staging into one in place: in the staging
  // buffer.
  if (operation.staging != nullptr && operation.leaves_result_at(board.rank())) {
    std::memcpy(operation.data, operation.staging, operation.what.sent);
  }
  fetch_for_writing(&board.slice_of(operation.sequence + 1, board.rank()));
}

bool needs(const Board& board, const Operation& operation, int member) {
  return operation.is_sliced() ? !all_done(board, operation) : !has_done(board, operation, member);
}

}  // namespace lockstep::shm::direct
