// A rank's own part of the shared segment, handed out in pieces.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace lockstep::shm {

/// First-fit allocator over one address range. Thread-safe. Pages are populated when they are first handed
/// out, so that a machine without memory is an error here and never a SIGBUS later; they stay populated for
/// reuse.
class Arena {
 public:
  Arena(std::byte* base, size_t capacity);

  /// At least `bytes` bytes, aligned to a page for a page or more, else to 128. Contents are undefined.
  /// Throws Error with the size needed and the remedy when memory or the arena is exhausted.
  std::byte* allocate(size_t bytes);
  /// Gives back what allocate() returned.
  void release(std::byte* pointer);

  bool contains(const void* pointer, size_t bytes) const;
  size_t bytes_in_use() const;

 private:
  void populate_to(size_t end);

  std::byte* base_;
  size_t capacity_;
  mutable std::mutex mutex_;
  size_t populated_ = 0;           // bytes from the start that have memory behind them
  std::map<size_t, size_t> free_;  // offset -> bytes, disjoint and never adjacent
  std::map<size_t, size_t> used_;  // offset -> bytes
};

}  // namespace lockstep::shm
