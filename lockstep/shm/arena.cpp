#include "lockstep/shm/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/cgroup.h"
#include "lockstep/base/error.h"
#include "lockstep/shm/layout.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace lockstep::shm {
namespace {

constexpr size_t kPage = 4096;
/// Pages are asked for in steps of this size, so that a run of small tensors is one call.
constexpr size_t kPopulateStep = size_t{1} << 20;

constexpr const char* kRemedy =
    ": raise the memory limit of the container or job, or use fewer ranks per node";

std::string mebibytes(size_t bytes) { return fmt::format("{} MiB", (bytes + (1 << 20) - 1) >> 20); }

}  // namespace

Arena::Arena(std::byte* base, size_t capacity) : base_(base), capacity_(capacity) { free_[0] = capacity; }

std::byte* Arena::allocate(size_t bytes) {
  Shortage shortage;
  if (std::byte* const found = find(bytes, shortage)) return found;
  throw Error(describe(shortage));
}

std::byte* Arena::try_allocate(size_t bytes) {
  Shortage shortage;
  return find(bytes, shortage);
}

std::byte* Arena::try_allocate_for_operation(size_t bytes) {
  Shortage shortage;
  if (std::byte* const found = find(bytes, shortage, /*is_for_operation=*/true)) return found;
  reclaim();
  return find(bytes, shortage, /*is_for_operation=*/true);
}

void Arena::add_reclaimer(const void* owner, std::function<void()> give_back) {
  const base::LockGuard lock(reclaimers_mutex_);
  reclaimers_.insert_or_assign(owner, std::move(give_back));
}

void Arena::forget_reclaimer(const void* owner) {
  const base::LockGuard lock(reclaimers_mutex_);
  reclaimers_.erase(owner);
}

void Arena::reclaim() {
  const base::LockGuard lock(reclaimers_mutex_);
  for (const auto& [owner, give_back] : reclaimers_) give_back();
}

bool Arena::operations_hold_memory() {
  const base::LockGuard lock(mutex_);
  sweep();
  return of_operations_ > 0;
}

std::byte* Arena::find(size_t bytes, Shortage& shortage, bool is_for_operation) {
  const size_t alignment = bytes >= kPage ? kPage : kLine;
  const size_t size = round_up(std::max<size_t>(bytes, 1), alignment);
  const base::LockGuard lock(mutex_);
  if (!deferred_.empty() || !kept_.empty()) sweep();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, available] = *it;
    const size_t start = round_up(offset, alignment);
    if (start + size > offset + available) continue;
    if (!populate_to(start + size, shortage)) return nullptr;
    free_.erase(it);
    if (start > offset) free_[offset] = start - offset;
    if (offset + available > start + size) free_[start + size] = offset + available - (start + size);
    used_[start] = {size, is_for_operation};
    of_operations_ += is_for_operation ? 1 : 0;
    return base_ + start;
  }
  shortage = {.of = Shortage::Of::arena, .bytes = bytes};
  return nullptr;
}

void Arena::claim(std::byte* pointer, size_t bytes) {
  const auto start = static_cast<size_t>(pointer - base_);
  const base::LockGuard lock(mutex_);
  auto it = free_.upper_bound(start);
  if (it == free_.begin() || std::prev(it)->first + std::prev(it)->second < start + bytes) {
    throw Error(fmt::format("{} at {} of the shared arena are in use", mebibytes(bytes), start));
  }
  const auto [offset, available] = *--it;
  free_.erase(it);
  if (start > offset) free_[offset] = start - offset;
  if (offset + available > start + bytes) free_[start + bytes] = offset + available - (start + bytes);
  used_[start] = {bytes, /*is_of_operation=*/false};
}

std::string Arena::describe(const Shortage& shortage) const {
  if (shortage.of == Shortage::Of::arena) {
    return fmt::format(
        "the shared arena of {} has no room for another {}; raise LOCKSTEP_ARENA_BYTES at the "
        "launcher or free tensors made by empty_shared",
        mebibytes(capacity_), mebibytes(shortage.bytes));
  }
  std::string why;
  if (shortage.of == Shortage::Of::allowance) {
    why =
        fmt::format(": only {} are left in this control group or on this machine", mebibytes(shortage.left));
  } else if (shortage.error != EFAULT) {  // how the kernel says that a touch would have been a SIGBUS
    why = fmt::format(" ({})", std::strerror(shortage.error));
  }
  return fmt::format("no memory for {} of shared memory{}{}", mebibytes(shortage.bytes), why, kRemedy);
}

void Arena::release(std::byte* pointer) {
  const base::LockGuard lock(mutex_);
  release_locked(pointer);
}

void Arena::release_later(std::byte* pointer, std::function<bool()> unused) {
  const base::LockGuard lock(mutex_);
  deferred_.emplace_back(pointer, std::move(unused));
}

void Arena::keep(const std::byte* pointer, size_t bytes, std::function<bool()> unused) {
  const auto begin = static_cast<size_t>(pointer - base_);
  const base::LockGuard lock(mutex_);
  kept_.push_back({begin, begin + bytes, std::move(unused)});
}

void Arena::sweep() {
  std::erase_if(kept_, [](const Kept& kept) { return kept.unused(); });
  for (auto& [pointer, unused] : std::exchange(deferred_, {})) {
    if (unused()) {
      release_locked(pointer);
    } else {
      deferred_.emplace_back(pointer, std::move(unused));
    }
  }
}

void Arena::release_locked(std::byte* pointer) {
  const auto it = used_.find(static_cast<size_t>(pointer - base_));
  if (it == used_.end()) return;
  for (const Kept& kept : kept_) {
    if (kept.begin >= it->first + it->second.bytes || kept.end <= it->first || kept.unused()) continue;
    deferred_.emplace_back(pointer, kept.unused);
    return;
  }
  size_t offset = it->first;
  size_t size = it->second.bytes;
  of_operations_ -= it->second.is_of_operation ? 1 : 0;
  used_.erase(it);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += size;
      return;
    }
  }
  free_[offset] = size;
}

bool Arena::contains(const void* pointer, size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(pointer);
  return begin >= base_ && begin + bytes <= base_ + capacity_;
}

size_t Arena::bytes_in_use() {
  const base::LockGuard lock(mutex_);
  sweep();
  size_t total = 0;
  for (const auto& [offset, used] : used_) total += used.bytes;
  return total;
}

int Arena::huge_page_error() {
  const base::LockGuard lock(mutex_);
  return huge_page_error_;
}

void Arena::populate(std::byte* begin, size_t bytes) {
  const base::LockGuard lock(mutex_);
  Shortage shortage;
  if (!find_pages(begin, bytes, shortage)) throw Error(describe(shortage));
}

bool Arena::populate_to(size_t end, Shortage& shortage) {
  if (end <= populated_) return true;
  const size_t target = std::min(round_up(end, kPopulateStep), capacity_);
  if (!find_pages(base_ + populated_, target - populated_, shortage)) return false;
  use_huge_pages(populated_, target);
  populated_ = target;
  return true;
}

bool Arena::find_pages(std::byte* begin, size_t bytes, Shortage& shortage) {
  if (!check_memory(bytes, shortage)) return false;
  while (::madvise(begin, bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    // A kernel before 5.14 does not know the call; there the pages come on first touch.
    if (errno == EINVAL) break;
    shortage = {.of = Shortage::Of::system, .bytes = bytes, .error = errno};
    return false;
  }
  return true;
}

/// In a control group that is full the kernel does not refuse pages, it kills a process of the group: so look
/// before. Only now and then where there is plenty, as the other ranks take some too.
bool Arena::check_memory(size_t bytes, Shortage& shortage) {
  if (bytes <= expected_free_) {
    expected_free_ -= bytes;
    return true;
  }
  const auto room = free_memory();
  if (!room) return true;
  if (bytes > *room) {
    shortage = {.of = Shortage::Of::allowance, .bytes = bytes, .left = *room};
    return false;
  }
  expected_free_ = (*room - bytes) / 8;
  return true;
}

/// Large tensors gain 5 to 9 % from huge pages. Whoever gets none (an old kernel, no free ones) goes on with
/// small ones.
void Arena::use_huge_pages(size_t begin, size_t end) {
  const size_t first = begin / kHugePage * kHugePage;
  const size_t last = end / kHugePage * kHugePage;
  if (last <= first || end - begin < kHugePage) return;
  if (::madvise(base_ + first, last - first, MADV_COLLAPSE) != 0) huge_page_error_ = errno;
}

}  // namespace lockstep::shm
