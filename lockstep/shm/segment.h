// The shared segment of one node: making it, mapping it, and what a launcher reads and writes in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/shm/layout.h"

namespace lockstep::shm {

/// Makes the sparse, sealed, unnamed memory file that `ranks` processes of one node share. It has no name and
/// goes away with its last descriptor and mapping, however the processes end. `arena_bytes` is the most that
/// one rank can allocate (0: LOCKSTEP_ARENA_BYTES, else as much as the machine has memory, with more than
/// 8 ranks 8 times that in all, and half of `ulimit -v` where there is one; untouched bytes cost nothing). It
/// is less where all ranks together would need more than 32 TiB of addresses. `name` is what /proc shows of
/// it. `can_heal`: a rank that dies may be replaced. The descriptor is close-on-exec. Throws ValueError for a rank count outside 1..kMaxRanks or a variable
/// that cannot be, Error when the kernel refuses.
UniqueFd create_segment(int ranks, size_t arena_bytes = 0, const std::string& name = "lockstep",
                        bool can_heal = false);

/// A snapshot of one rank's record, for reports.
struct RankInfo {
  RankState state = RankState::absent;
  int pid = 0;
  uint64_t pid_namespace = 0;  ///< in which `pid` names it
  int wait_status = 0;
  uint64_t operations = 0;
  bool waits = false;          ///< a thread of it sleeps until an operation ends
  std::string last_operation;  ///< e.g. "all_reduce of 4096 bytes", empty before the first
};

/// A mapping of the segment. Move-only. All members may be called from any thread.
class Segment {
 public:
  /// Maps the segment behind `fd`, which the caller keeps. Throws Error when it is none of ours or of another
  /// version.
  static Segment map(int fd);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  int ranks() const { return static_cast<int>(header().ranks); }
  const SegmentHeader& header() const { return *reinterpret_cast<const SegmentHeader*>(base_); }
  RankRecord& rank_record(int rank) const;
  Doorbell& doorbell(int rank) const;
  FlightRing& flight_ring(int rank) const;
  AreaRecord& area_record(int area) const;
  std::byte* group_area(int group) const;
  std::byte* arena(int rank) const;
  /// setup_log_bytes of the header, all zeros at first.
  std::byte* setup_log(int rank) const;
  bool can_heal() const { return header().can_heal != 0; }
  /// How often a rank was replaced so far.
  uint32_t epoch() const { return header().epoch.load(std::memory_order_acquire); }
  size_t arena_bytes() const { return header().arena_bytes; }
  std::byte* base() const { return base_; }

  RankInfo rank_info(int rank) const;
  /// Called by the process that is `rank` from now on. Throws ValueError when the segment has no such rank,
  /// or it has joined before.
  void attach(int rank) const;
  /// Called by that process when it has left in good order.
  void leave(int rank) const;
  /// Called by the launcher when the process of `rank` has ended; peers that wait for it learn it at once.
  void mark_exited(int rank, int wait_status) const;
  /// Called by the launcher when the process of `rank` has ended and another one is about to start in its place: waits of
  /// the others for it end with WorldChangedError. Where can_heal().
  /// `epoch`: the one that begins with it, where several machines count together; 0: the next of this segment.
  void replace(int rank, uint32_t epoch = 0) const;
  /// Called by the launcher when a rank of another machine is replaced: that epoch begins here, too. Where can_heal().
  void begin_epoch(uint32_t epoch) const;

 private:
  explicit Segment(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}
  std::atomic<uint32_t>& epoch_word() const { return reinterpret_cast<SegmentHeader*>(base_)->epoch; }
  void wake_all() const;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
};

/// "ended with exit code 3" or "was killed by SIGKILL" for a status as from waitpid.
std::string describe_wait_status(int wait_status);

}  // namespace lockstep::shm
