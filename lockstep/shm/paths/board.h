// What the ranks of a group lay out for each other in its control area, as one rank sees it: posts, slices,
// staging buffers, and how far each rank has come.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/shm/layout.h"
#include "lockstep/shm/membership.h"
#include "lockstep/shm/paths/operation.h"

namespace lockstep::shm {

/// Group has it and guards it with the engine's mutex.
class Board {
 public:
  /// `members` must outlive it.
  explicit Board(Membership& members);
  Board(const Board&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  Post& post_of(uint64_t sequence, int member) const { return posts_[index(sequence, member)]; }
  Slice& slice_of(uint64_t sequence, int member) const { return slices_[index(sequence, member)]; }
  Slice& own_slice_of(const Operation& operation) const { return slice_of(operation.sequence, rank_); }

  bool has_posted(const Operation& operation, int member) const {
    // acquire: what the rank wrote before it arrived.
    return post_of(operation.sequence, member).sequence.load(std::memory_order_acquire) == operation.sequence;
  }
  bool all_posted(const Operation& operation) const {
    for (int m = 0; m < size_; ++m) {
      if (!has_posted(operation, m)) return false;
    }
    return true;
  }

  /// Byte `offset` of what `member` offers, which has posted.
  std::byte* address_of(const Operation& operation, int member, size_t offset) const {
    Post& post = post_of(operation.sequence, member);
    if (post.what.memory == Memory::post) return post.payload(post.what.sent) + offset;
    const size_t in_memory = post.what.memory == Memory::window ? offset % kWindowBytes : offset;
    return base_ + post.what.offset + in_memory;
  }
  /// As a post names it.
  uint64_t offset_of(const std::byte* place) const { return static_cast<uint64_t>(place - base_); }

  /// A staging buffer of this rank's that nobody reads any more, for operation `sequence`.
  std::byte* reserve_staging(uint64_t sequence);
  /// Has every rank finished with all operations up to this one?
  bool everyone_consumed(uint64_t sequence) {
    return sequence <= known_consumed_ || look_whether_everyone_consumed(sequence);
  }
  bool has_consumed(int member, uint64_t sequence) const {
    return progress_[member].consumed.load(std::memory_order_relaxed) >= sequence;
  }
  /// This rank has, so that peers may reuse what those operations read.
  void set_consumed(uint64_t last) { progress_[rank_].consumed.store(last, std::memory_order_release); }

  /// Membership's.
  void ring_sleepers() const { members_.ring_sleepers(); }

  /// What this rank was told late to copy for an operation.
  std::vector<Copy>& late_copies_of(const Operation& operation) {
    return late_copies_[operation.sequence % kSlots];
  }

 private:
  bool look_whether_everyone_consumed(uint64_t sequence);
  size_t index(uint64_t sequence, int member) const {
    return (sequence % kSlots) * static_cast<size_t>(size_) + static_cast<size_t>(member);
  }

  Membership& members_;
  const int rank_, size_;
  std::byte* const base_;  // of the segment
  MemberProgress* progress_;
  Post* posts_;
  Slice* slices_;
  std::byte* staging_;
  uint64_t known_consumed_ = 0;  // by everybody, as was read last
  std::array<uint64_t, kHotStaging> staging_used_by_{};
  std::array<std::vector<Copy>, kSlots> late_copies_;
};

}  // namespace lockstep::shm
