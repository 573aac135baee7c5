#include "lockstep/shm/setup_log.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

constexpr size_t kHeadBytes = 4096;
constexpr size_t kEntryBytes = round_up(sizeof(SetupLog::Entry), kCacheLine);

}  // namespace

/// At the log's start.
struct SetupLog::Head {
  std::atomic<uint64_t> used;  // release: bytes of whole entries behind the head
  uint32_t has_problem;
  char problem[1024];
};

SetupLog::SetupLog(const Segment& segment, Arena& arena, int rank)
    : segment_(segment), arena_(arena), rank_(rank) {
  static_assert(sizeof(Head) <= kHeadBytes);
}

SetupLog::Head& SetupLog::head() const { return *reinterpret_cast<Head*>(segment_.setup_log(rank_)); }

void SetupLog::append(Entry entry, std::span<const std::span<const std::byte>> pieces) {
  const base::LockGuard lock(mutex_);
  entry.bytes = 0;
  for (const auto& piece : pieces) entry.bytes += piece.size();
  const uint64_t used = head().used.load(std::memory_order_relaxed);
  const uint64_t needed = kEntryBytes + round_up(entry.bytes, kCacheLine);
  if (head().has_problem != 0) return;
  if (kHeadBytes + used + needed > segment_.header().setup_log_bytes) {
    return refuse(fmt::format("it has got more than {} bytes from the others before its first step",
                              segment_.header().setup_log_bytes));
  }
  std::byte* const begin = segment_.setup_log(rank_) + kHeadBytes + used;
  try {
    arena_.populate(begin, needed);
  } catch (const Error& error) {
    return refuse(
        fmt::format("there is no memory to note what it has got from the others: {}", error.what()));
  }
  std::memcpy(begin, &entry, sizeof entry);
  std::byte* to = begin + kEntryBytes;
  for (const auto& piece : pieces) {
    if (!piece.empty()) std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  head().used.store(used + needed, std::memory_order_release);
}

std::byte* SetupLog::memory_behind(size_t offset, size_t bytes) {
  const base::LockGuard lock(mutex_);
  const size_t start = round_up(kHeadBytes + head().used.load(std::memory_order_acquire), 4096) + offset;
  if (start + bytes > segment_.header().setup_log_bytes) {
    throw Error(fmt::format("there is no place for {} bytes that outlive a rank; there is for {} in all",
                            bytes, segment_.header().setup_log_bytes));
  }
  std::byte* const begin = segment_.setup_log(rank_) + start;
  size_t& populated = populated_[offset];
  if (bytes > populated) {
    arena_.populate(begin, bytes);
    populated = bytes;
  }
  return begin;
}

void SetupLog::refuse(const std::string& why) {
  if (std::exchange(head().has_problem, 1U) != 0) return;
  const size_t length = std::min(why.size(), sizeof head().problem - 1);
  std::memcpy(head().problem, why.data(), length);
  head().problem[length] = '\0';
}

std::string SetupLog::problem() const { return head().has_problem != 0 ? head().problem : ""; }

void SetupLog::index_all() {
  const uint64_t used = head().used.load(std::memory_order_acquire);
  while (indexed_ < used) {
    const auto* const entry =
        reinterpret_cast<const Entry*>(segment_.setup_log(rank_) + kHeadBytes + indexed_);
    entries_[entry->key] = entry;
    indexed_ += kEntryBytes + round_up(entry->bytes, kCacheLine);
  }
}

const SetupLog::Entry* SetupLog::find(const Key& key) {
  const base::LockGuard lock(mutex_);
  index_all();
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second;
}

std::vector<const SetupLog::Entry*> SetupLog::list(uint64_t what) {
  const base::LockGuard lock(mutex_);
  index_all();
  std::vector<const Entry*> found;
  for (const auto& [key, entry] : entries_) {
    if (entry->what == what) found.push_back(entry);
  }
  return found;
}

std::vector<const SetupLog::Entry*> SetupLog::all() {
  const base::LockGuard lock(mutex_);
  index_all();
  std::vector<const Entry*> found;
  for (const auto& [key, entry] : entries_) found.push_back(entry);
  return found;
}

std::span<const std::byte> SetupLog::bytes_of(const Entry& entry) {
  return {reinterpret_cast<const std::byte*>(&entry) + kEntryBytes, entry.bytes};
}

}  // namespace lockstep::shm
