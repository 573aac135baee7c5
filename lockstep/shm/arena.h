// A rank's own part of the shared segment, handed out in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"

namespace lockstep::shm {

/// First-fit allocator over one address range. Thread-safe. Pages are populated when they are first handed
/// out, so that a machine or a control group without memory is an error here and never a SIGBUS, or the end
/// by the kernel, later; they stay populated for reuse.
class Arena {
 public:
  Arena(std::byte* base, size_t capacity);

  /// At least `bytes` bytes, aligned to a page for a page or more, else to 128. Contents are undefined.
  /// Throws Error with the size needed and the remedy when memory or the arena is exhausted.
  std::byte* allocate(size_t bytes);
  /// Works like allocate(), but returns null when memory or the arena is exhausted.
  std::byte* try_allocate(size_t bytes);
  /// Allocates for a window or a message, or returns null: what has it now gives it back by itself.
  std::byte* try_allocate_for_operation(size_t bytes);
  /// `give_back` releases what `owner` has handed out and nobody uses any more; reclaim() calls it. One for each owner,
  /// until it is forgotten.
  void add_reclaimer(const void* owner, std::function<void()> give_back);
  void forget_reclaimer(const void* owner);
  /// Asks all owners for what is not used any more. Whoever calls it holds what guards them.
  void reclaim();
  /// Does any window or message, of whichever group of this process, hold memory here?
  bool operations_hold_memory();
  /// Takes what another process of this rank had got by allocate(), and others still use. Throws Error where some of it is taken.
  void claim(std::byte* pointer, size_t bytes);
  /// Gives back what allocate() returned.
  void release(std::byte* pointer);

  /// Gives it back once `unused()` says that no other rank touches it any more, which later calls ask.
  void release_later(std::byte* pointer, std::function<bool()> unused);

  /// Some of what was handed out: even when it is released, it is handed out again only once `unused()`.
  void keep(const std::byte* pointer, size_t bytes, std::function<bool()> unused);

  /// Sees to it that memory of the segment, outside this arena, has pages behind it. Throws Error like allocate().
  void populate(std::byte* begin, size_t bytes);

  bool contains(const void* pointer, size_t bytes) const;
  /// Releases what can be released by now.
  size_t bytes_in_use();
  /// Why the kernel last refused huge pages (an errno of MADV_COLLAPSE); 0 where it never did.
  int huge_page_error();

 private:
  /// Why there is no memory.
  struct Shortage {
    enum class Of : uint8_t { arena, allowance, system };
    Of of = Of::arena;
    size_t bytes = 0;  // that are wanted of it
    size_t left = 0;   // of an allowance
    int error = 0;     // of the system
  };
  std::byte* find(size_t bytes, Shortage& shortage, bool is_for_operation = false);
  std::string describe(const Shortage& shortage) const;
  void release_locked(std::byte* pointer) LOCKSTEP_REQUIRES(mutex_);
  void sweep() LOCKSTEP_REQUIRES(mutex_);
  bool populate_to(size_t end, Shortage& shortage) LOCKSTEP_REQUIRES(mutex_);
  bool find_pages(std::byte* begin, size_t bytes, Shortage& shortage) LOCKSTEP_REQUIRES(mutex_);
  bool check_memory(size_t bytes, Shortage& shortage) LOCKSTEP_REQUIRES(mutex_);
  void use_huge_pages(size_t begin, size_t end) LOCKSTEP_REQUIRES(mutex_);

  std::byte* base_;
  size_t capacity_;
  base::Mutex reclaimers_mutex_;  // before mutex_
  std::map<const void*, std::function<void()>> reclaimers_ LOCKSTEP_GUARDED_BY(reclaimers_mutex_);
  base::Mutex mutex_;
  std::vector<std::pair<std::byte*, std::function<bool()>>> deferred_ LOCKSTEP_GUARDED_BY(mutex_);
  struct Kept {
    size_t begin, end;
    std::function<bool()> unused;
  };
  std::vector<Kept> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  int huge_page_error_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  size_t populated_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // bytes from the start that have memory behind them
  // So much may be populated before the system is asked again.
  size_t expected_free_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::map<size_t, size_t> free_ LOCKSTEP_GUARDED_BY(mutex_);  // offset -> bytes, disjoint and never adjacent
  struct Used {
    size_t bytes;
    bool is_of_operation;
  };
  std::map<size_t, Used> used_ LOCKSTEP_GUARDED_BY(mutex_);  // by offset
  size_t of_operations_ LOCKSTEP_GUARDED_BY(mutex_) = 0;     // how many of them
};

}  // namespace lockstep::shm
