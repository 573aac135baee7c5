// The file that a rank writes its spans into while it runs, mapped into memory: what a killed process has
// written stays. A job's parts lie in one folder until they are merged.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lockstep/timeline/timeline.h"

namespace lockstep::timeline {

struct Event {
  int64_t begin, end;  // of now()
  int64_t bytes;
  int32_t bucket;
  Kind kind;
  std::array<char, kMostNameBytes> name;  // ends with 0 where it is shorter
};
static_assert(sizeof(Event) == 64);

/// Threads that record at the same time; a thread that ends leaves its place to the next one.
inline constexpr size_t kMostThreads = 64;
/// Each thread keeps this many events: older ones are overwritten.
inline constexpr size_t kRingEvents = size_t{1} << 16;

/// Written by the one thread that has claimed it.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;  // events so far; the i-th lies at i % kRingEvents
  alignas(64) std::array<Event, kRingEvents> events;
};

inline constexpr uint64_t kPartMagic = 0x31656e694c6b634cULL;  // changes with the layout

struct PartHeader {
  uint64_t magic;
  int32_t rank, world_size;
  int64_t clock_offset;  // to add to this machine's clock for rank 0's
  int64_t clock_error;   // it is no further off than this
  std::array<char, 64> host;
  std::atomic<uint64_t> claimed;   // bit t: a thread has ring t
  std::atomic<uint64_t> unplaced;  // events of threads that found no ring
  std::atomic<uint32_t> finished;  // 1: the rank left of its own accord
};

/// Rings that no thread has touched take no space on the disk.
struct Part {
  PartHeader header;
  alignas(4096) std::array<Ring, kMostThreads> rings;
};

}  // namespace lockstep::timeline
