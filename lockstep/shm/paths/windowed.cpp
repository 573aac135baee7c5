#include "lockstep/shm/paths/windowed.h"

#include <algorithm>
#include <cstring>

#include "lockstep/shm/paths/work.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm::windowed {
namespace {

Range block_range(uint32_t block, size_t bytes) {
  const size_t begin = std::min(block * kBlockBytes, bytes);
  return {begin, std::min(begin + kBlockBytes, bytes)};
}

uint32_t blocks_of(const Board& board, const Operation& operation, int member) {
  const size_t sent = board.post_of(operation.sequence, member).what.sent;
  return static_cast<uint32_t>((sent + kBlockBytes - 1) / kBlockBytes);
}

bool has_result_in_window(const Board& board, const Operation& operation) {
  return operation.window != nullptr && operation.leaves_result_at(board.rank());
}

bool has_done(const Board& board, const Operation& operation, int member) {
  // acquire: the results that rank stored here, or that it no longer reads this rank's window.
  return board.slice_of(operation.sequence, member).done.load(std::memory_order_acquire) >= operation.blocks;
}

uint32_t blocks_done_by_all(const Board& board, const Operation& operation) {
  uint32_t least = operation.blocks;
  for (int m = 0; m < board.size(); ++m) {
    // acquire: the results that rank stored here, or that it no longer reads this rank's window.
    least = std::min(least, board.slice_of(operation.sequence, m).done.load(std::memory_order_acquire));
  }
  return least;
}

/// Copies the next block into this rank's window, where there is room.
bool fill_block(Board& board, Operation& operation) {
  if (operation.window == nullptr || operation.filled == blocks_of(board, operation, board.rank()))
    return false;
  if (operation.filled >= kWindowBlocks) {
    const uint32_t free_again =
        has_result_in_window(board, operation) ? operation.emptied : blocks_done_by_all(board, operation);
    if (operation.filled - kWindowBlocks >= free_again) return false;
  }
  const Range block = block_range(operation.filled, operation.what.sent);
  std::byte* const to = board.address_of(operation, board.rank(), block.begin) - block.begin;
  const auto copy = [&](size_t begin, size_t end) {
    if (begin < end) std::memcpy(to + begin, operation.data + begin, end - begin);
  };
  // The part that this rank reduces itself, nobody else reads.
  const Range own =
      operation.is_sliced() ? slice_of_range(block, board.rank(), board.size()) : Range{block.end, block.end};
  copy(block.begin, own.begin);
  copy(own.end, block.end);
  ++operation.filled;
  // release: the block is in the window.
  board.own_slice_of(operation).filled.store(operation.filled, std::memory_order_release);
  return true;
}

/// Does this rank's part of the next block, where every sender has filled it.
bool process_block(Board& board, Operation& operation) {
  const uint32_t block = operation.processed;
  if (block == operation.blocks) return false;
  for (int m = 0; m < board.size(); ++m) {
    const bool comes_by_window = board.post_of(operation.sequence, m).what.memory == Memory::window;
    if (!comes_by_window || block >= blocks_of(board, operation, m)) continue;
    // acquire: the block's bytes.
    if (board.slice_of(operation.sequence, m).filled.load(std::memory_order_acquire) <= block) return false;
  }
  const Range range = block_range(block, SIZE_MAX);
  if (operation.is_sliced()) {
    const Range own = slice_of_range(block_range(block, operation.bytes()), board.rank(), board.size());
    if (own.size() > 0) reduce_range(board, operation, own, operation.data + own.begin);
  } else if (operation.what.kind == OpKind::reduce_scatter) {
    reduce_own_parts(board, operation, range);
  } else {
    const auto [copies, copy_count] = copies_of(board, operation);
    for (size_t i = 0; i < copy_count; ++i) {
      const Copy& copy = copies[i];
      const Range wanted = intersection(range, {copy.source_offset, copy.source_offset + copy.bytes});
      if (wanted.size() == 0) continue;
      const std::byte* const from = board.address_of(operation, copy.source, wanted.begin);
      std::byte* const to = static_cast<std::byte*>(copy.destination) + (wanted.begin - copy.source_offset);
      if (to != from) std::memcpy(to, from, wanted.size());
    }
  }
  ++operation.processed;
  // release: the results are in every rank's window, and this rank no longer reads the block.
  board.own_slice_of(operation).done.store(operation.processed, std::memory_order_release);
  return true;
}

/// Copies the results of the next block out of this rank's window, once all ranks have put theirs there.
bool empty_block(Board& board, Operation& operation) {
  if (!has_result_in_window(board, operation)) return false;
  if (operation.emptied >= blocks_done_by_all(board, operation)) return false;
  const Range block = block_range(operation.emptied, operation.what.sent);
  const std::byte* const from = board.address_of(operation, board.rank(), block.begin) - block.begin;
  const auto copy = [&](size_t begin, size_t end) {
    if (begin < end) std::memcpy(operation.data + begin, from + begin, end - begin);
  };
  const Range own = slice_of_range(block, board.rank(), board.size());
  copy(block.begin, own.begin);
  copy(own.end, block.end);
  ++operation.emptied;
  return true;
}

uint32_t most_blocks(const Board& board, const Operation& operation) {
  uint32_t most = 0;
  for (int m = 0; m < board.size(); ++m) most = std::max(most, blocks_of(board, operation, m));
  return most;
}

}  // namespace

void offer(const Board& board, Operation& operation) {
  operation.what.offset = board.offset_of(operation.window);
}

bool advance(Board& board, Operation& operation) {
  if (operation.blocks == 0) operation.blocks = most_blocks(board, operation);
  bool moved_ever = false;
  for (bool moved = true; moved;) {
    moved = false;
    while (fill_block(board, operation)) moved = true;
    if (process_block(board, operation)) moved = true;
    if (empty_block(board, operation)) moved = true;
    moved_ever = moved_ever || moved;
  }
  if (moved_ever) {
    full_fence();
    board.ring_sleepers();
  }
  if (blocks_done_by_all(board, operation) < operation.blocks) return false;
  return !has_result_in_window(board, operation) || operation.emptied == operation.blocks;
}

void finish(const Board& board, const Operation& operation) {
  fetch_for_writing(&board.slice_of(operation.sequence + 1, board.rank()));
}

bool needs(const Board& board, const Operation& operation, int member) {
  return !has_done(board, operation, member);
}

}  // namespace lockstep::shm::windowed
