// Buffers outside the segment: their bytes pass through a window in each rank's arena, block by block, so
// that a large message needs little shared memory and what is copied is still in the cache when it is used.
//
// A rank fills blocks of its window; once every sender has filled a block, every rank takes its part of it;
// once all have, what a reduction left in the window is copied out and the place is free for another block.
#include <algorithm>
#include <cstring>

#include "lockstep/shm/group.h"

namespace lockstep::shm {
namespace {

Range block_range(uint32_t block, size_t bytes) {
  const size_t begin = std::min(block * kBlockBytes, bytes);
  return {begin, std::min(begin + kBlockBytes, bytes)};
}

}  // namespace

void Group::begin_windows(Operation& operation) {
  for (int m = 0; m < size(); ++m) operation.blocks = std::max(operation.blocks, blocks_of(operation, m));
}

bool Group::advance_windows(Operation& operation) {
  bool moved_ever = false;
  for (bool moved = true; moved;) {
    moved = false;
    while (fill_block(operation)) moved = true;
    if (process_block(operation)) moved = true;
    if (empty_block(operation)) moved = true;
    moved_ever = moved_ever || moved;
  }
  if (moved_ever) {
    full_fence();
    members_->ring_sleepers();
  }
  if (!all_done(operation)) return false;
  return !has_result_in_window(operation) || operation.emptied == operation.blocks;
}

/// Copies the next block into this rank's window, where there is room.
bool Group::fill_block(Operation& operation) {
  if (operation.window == nullptr || operation.filled == blocks_of(operation, rank())) return false;
  if (operation.filled >= kWindowBlocks) {
    const uint32_t free_again =
        has_result_in_window(operation) ? operation.emptied : blocks_done_by_all(operation);
    if (operation.filled - kWindowBlocks >= free_again) return false;
  }
  const Range block = block_range(operation.filled, operation.what.sent);
  std::byte* const to = address_of(operation, rank(), block.begin) - block.begin;
  const auto copy = [&](size_t begin, size_t end) {
    if (begin < end) std::memcpy(to + begin, operation.data + begin, end - begin);
  };
  // The part that this rank reduces itself, nobody else reads.
  const Range own =
      operation.is_sliced() ? slice_of_range(block, rank(), size()) : Range{block.end, block.end};
  copy(block.begin, own.begin);
  copy(own.end, block.end);
  ++operation.filled;
  // release: the block is in the window.
  slice_of(operation.sequence, rank()).filled.store(operation.filled, std::memory_order_release);
  return true;
}

/// Does this rank's part of the next block, where every sender has filled it.
bool Group::process_block(Operation& operation) {
  const uint32_t block = operation.processed;
  if (block == operation.blocks) return false;
  for (int m = 0; m < size(); ++m) {
    const bool comes_by_window = post_of(operation.sequence, m).what.memory == Memory::window;
    if (!comes_by_window || block >= blocks_of(operation, m)) continue;
    // acquire: the block's bytes.
    if (slice_of(operation.sequence, m).filled.load(std::memory_order_acquire) <= block) return false;
  }
  const Range range = block_range(block, SIZE_MAX);
  if (operation.is_sliced()) {
    const Range own = slice_of_range(block_range(block, operation.bytes()), rank(), size());
    if (own.size() > 0) reduce_range(operation, own);
  } else if (operation.what.kind == OpKind::reduce_scatter) {
    reduce_own_blocks(operation, range);
  } else {
    const auto [copies, copy_count] = copies_of(operation);
    for (size_t i = 0; i < copy_count; ++i) {
      const Copy& copy = copies[i];
      const Range wanted = intersection(range, {copy.source_offset, copy.source_offset + copy.bytes});
      if (wanted.size() == 0) continue;
      const std::byte* const from = address_of(operation, copy.source, wanted.begin);
      std::byte* const to = static_cast<std::byte*>(copy.destination) + (wanted.begin - copy.source_offset);
      if (to != from) std::memcpy(to, from, wanted.size());
    }
  }
  ++operation.processed;
  // release: the results are in every rank's window, and this rank no longer reads the block.
  slice_of(operation.sequence, rank()).done.store(operation.processed, std::memory_order_release);
  return true;
}

/// Copies the results of the next block out of this rank's window, once all ranks have put theirs there.
bool Group::empty_block(Operation& operation) {
  if (!has_result_in_window(operation)) return false;
  if (operation.emptied >= blocks_done_by_all(operation)) return false;
  const Range block = block_range(operation.emptied, operation.what.sent);
  const std::byte* const from = address_of(operation, rank(), block.begin) - block.begin;
  const auto copy = [&](size_t begin, size_t end) {
    if (begin < end) std::memcpy(operation.data + begin, from + begin, end - begin);
  };
  const Range own = slice_of_range(block, rank(), size());
  copy(block.begin, own.begin);
  copy(own.end, block.end);
  ++operation.emptied;
  return true;
}

uint32_t Group::blocks_of(const Operation& operation, int member) const {
  const size_t sent = post_of(operation.sequence, member).what.sent;
  return static_cast<uint32_t>((sent + kBlockBytes - 1) / kBlockBytes);
}

uint32_t Group::blocks_done_by_all(const Operation& operation) const {
  uint32_t least = operation.blocks;
  for (int m = 0; m < size(); ++m) {
    // acquire: the results that rank stored here, or that it no longer reads this rank's window.
    least = std::min(least, slice_of(operation.sequence, m).done.load(std::memory_order_acquire));
  }
  return least;
}

bool Group::has_result_in_window(const Operation& operation) const {
  if (operation.window == nullptr) return false;
  return operation.is_all_reduce() || (operation.what.kind == OpKind::reduce && operation.root() == rank());
}

}  // namespace lockstep::shm
