#include "lockstep/shm/paths/board.h"

#include <algorithm>

namespace lockstep::shm {

Board::Board(Membership& members)
    : members_(members), rank_(members.rank()), size_(members.size()), base_(members.segment().base()) {
  const GroupLayout layout(static_cast<size_t>(size_));
  std::byte* const area = members.segment().group_area(members.area());
  progress_ = reinterpret_cast<MemberProgress*>(area + layout.progress);
  posts_ = reinterpret_cast<Post*>(area + layout.posts);
  slices_ = reinterpret_cast<Slice*>(area + layout.slices);
  staging_ = area + layout.staging;
}

std::byte* Board::reserve_staging(uint64_t sequence) {
  size_t index = sequence % kHotStaging;
  if (everyone_consumed(staging_used_by_[index])) {
    staging_used_by_[index] = sequence;
  } else {
    index = kHotStaging + sequence % kSlots;  // free, since the slot is
  }
  return staging_ + (static_cast<size_t>(rank_) * kStagingDepth + index) * kStagingBytes;
}

bool Board::look_whether_everyone_consumed(uint64_t sequence) {
  uint64_t least = UINT64_MAX;
  for (int m = 0; m < size_; ++m) {
    // acquire: that rank has read everything of the operations it reports as consumed.
    least = std::min(least, progress_[m].consumed.load(std::memory_order_acquire));
  }
  known_consumed_ = least;
  return sequence <= known_consumed_;
}

}  // namespace lockstep::shm
