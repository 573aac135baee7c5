// A rank among the ranks of a group: notices that one is gone, and breaks the group for all.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/shm/flight_recorder.h"
#include "lockstep/shm/layout.h"
#include "lockstep/shm/peers.h"
#include "lockstep/shm/process.h"
#include "lockstep/shm/segment.h"

namespace lockstep::shm {

/// What a rank is waiting for, so that a wait which fails can say it.
class Awaited {
 public:
  /// Can the wait not end without `member` doing something more?
  virtual bool needs(int member) const = 0;
  /// For the message: "all_reduce #41 (float32[1024], SUM)".
  virtual std::string describe() const = 0;
  /// Returns the number of the collective that is awaited; 0 for anything else.
  virtual uint64_t sequence() const { return 0; }

 protected:
  ~Awaited() = default;
};

/// Who the ranks of a group are. It never changes: any thread may ask, without a lock.
class Members {
 public:
  /// `members`: the group's ranks as ranks of the segment; `rank`: this one's place among them; `area`: the
  /// group's.
  Members(const Segment& segment, int area, std::vector<int> members, int rank)
      : segment_(segment), area_(area), members_(std::move(members)), rank_(rank) {}

  const Segment& segment() const { return segment_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int area() const { return area_; }
  int segment_rank_of(int member) const { return members_.at(static_cast<size_t>(member)); }
  /// This rank's number in the segment.
  int segment_rank() const { return members_[static_cast<size_t>(rank_)]; }
  /// Throws ValueError in a fork of this rank.
  void check_process() const { process_.check(rank_); }
  bool is_copy() const { return process_.is_copy(); }

 private:
  const Segment& segment_;
  int area_;
  std::vector<int> members_;
  int rank_;
  RankProcess process_;
};

/// What a rank knows of the others. Group has it and guards it with the engine's mutex, for itself and for what it
/// lends it to; all_others_have_stopped() needs no lock.
class Membership : public Members {
 public:
  /// As those of Members.
  Membership(const Segment& segment, Peers& peers, int area, std::vector<int> members, int rank);
  Membership(const Membership&) = delete;

  FlightRecorder& recorder() { return recorder_; }
  /// `stop` is called once, when this rank learns that the group is broken.
  void on_broken(std::function<void()> stop) { on_broken_ = std::move(stop); }

  /// For a wait: throws the first cause once the group is broken; breaks it and throws where a member that
  /// `awaited` needs is gone. When the time is over, TimeoutError says who is missing; `breaks`: and the
  /// group is broken.
  void check(const Awaited& awaited, bool timed_out, std::chrono::milliseconds timeout, bool breaks);
  /// Wakes the members that sleep. A sequentially consistent fence must stand between what this rank did and
  /// this call, or a peer that falls asleep in between would miss it.
  void ring_sleepers();
  /// Wakes `member` if it sleeps; needs the same fence.
  void ring(int member);

  /// Has every other member left or died?
  bool all_others_are_gone();
  /// Does no other member touch this rank's memory on behalf of this group any more? Also right after
  /// leave().
  bool all_others_have_stopped();
  bool is_broken() const { return broken_ != nullptr; }
  /// Tells the others that this rank starts no operation from `sequence` on; it goes on with those before.
  void close(uint64_t sequence);
  /// Tells the others that this rank takes no further part.
  void leave();

  /// Learns from a peer that the group is broken; true once it is.
  bool notice_failure() {
    // acquire: the record is complete.
    return broken_ || (failure_->state.load(std::memory_order_acquire) == 2 && take_failure());
  }
  /// Throws the first cause once the group is broken, by whichever rank.
  void check_broken() {
    if (notice_failure()) std::rethrow_exception(broken_);
  }
  /// Breaks the group for all ranks, because a step has failed: whoever waits gets a StepFailedError.
  void interrupt(const std::string& why);
  /// What the group is left with after interrupt() or a failure, as far as this rank has written it, becomes what it is
  /// at first. All members call it while none of them touches the group; each makes a new Membership after that.
  void clear_own_part();
  /// Breaks the group for all ranks and throws.
  [[noreturn]] void fail(FailureKind kind, const std::string& message, int lost_rank = -1,
                         const RankSet& missing = {});

 private:
  /// Writes the group's failure record, if no other rank has; says whether this rank did.
  bool report(FailureKind kind, const std::string& message, int lost_rank, const RankSet& missing);
  /// Makes the reported failure this rank's, and returns true.
  [[gnu::cold]] bool take_failure();
  /// As far as operation `sequence` needs it; 0: altogether. Nothing while it lives and takes part.
  std::optional<Ending> find_ending(int member, uint64_t sequence = 0);
  std::string describe_peer(int member) const;
  void set_broken(FailureKind kind, const std::string& message, int lost_rank, const RankSet& missing);
  void print_flight_recorder() const;

  Peers& peers_;
  uint32_t generation_;
  FlightRecorder recorder_;
  FailureRecord* failure_;
  MemberProgress* progress_;
  std::function<void()> on_broken_;
  std::exception_ptr broken_;
};

}  // namespace lockstep::shm
