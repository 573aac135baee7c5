#include "lockstep/shm/areas.h"

#include <sys/mman.h>

#include <cstring>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::shm {

int claim_area(const Segment& segment, int members) {
  for (int area = kWorldArea + 1; area < kMaxGroups; ++area) {
    AreaRecord& record = segment.area_record(area);
    uint32_t expected = 0;
    // acquire: the area has been cleared.
    if (!record.used.compare_exchange_strong(expected, 1, std::memory_order_acquire)) continue;
    record.members_left.store(static_cast<uint32_t>(members), std::memory_order_relaxed);
    return area;
  }
  throw Error(fmt::format(
      "all {} process groups of this node are in use: destroy those that are no longer needed", kMaxGroups));
}

void adopt_area(const Segment& segment, int area, int members) {
  if (area == kWorldArea) return;
  AreaRecord& record = segment.area_record(area);
  // All store the same.
  record.used.store(1, std::memory_order_relaxed);
  record.members_left.store(static_cast<uint32_t>(members), std::memory_order_relaxed);
}

void leave_area(const Segment& segment, int area) {
  if (area == kWorldArea) return;
  AreaRecord& record = segment.area_record(area);
  // acquire and release: every member's last access comes before the clearing.
  if (record.members_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  record.generation.fetch_add(1, std::memory_order_relaxed);
  const size_t bytes = segment.header().group_bytes;
  // A hole reads as zeros and costs no memory.
  if (::madvise(segment.group_area(area), bytes, MADV_REMOVE) != 0)
    std::memset(segment.group_area(area), 0, bytes);
  record.used.store(0, std::memory_order_release);
}

}  // namespace lockstep::shm
