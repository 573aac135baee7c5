// A rank among the ranks of a group: how it waits for them, notices that one is gone, and breaks the group
// for all.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"
#include "lockstep/shm/flight_recorder.h"
#include "lockstep/shm/layout.h"
#include "lockstep/shm/process.h"
#include "lockstep/shm/segment.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm {

/// What a rank is waiting for, so that a wait which fails can say it.
class Awaited {
 public:
  /// Can the wait not end without `member` doing something more?
  virtual bool needs(int member) const = 0;
  /// For the message: "all_reduce #41 (float32[1024], SUM)".
  virtual std::string describe() const = 0;

 protected:
  ~Awaited() = default;
};

/// One thread at a time.
class Membership {
 public:
  /// `members`: the group's ranks as ranks of the segment; `rank`: this one's place among them; `area`: the
  /// group's.
  Membership(const Segment& segment, int area, std::vector<int> members, int rank);
  Membership(const Membership&) = delete;

  const Segment& segment() const { return segment_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int area() const { return area_; }
  int segment_rank_of(int member) const { return members_.at(static_cast<size_t>(member)); }
  /// This rank's number in the segment.
  int segment_rank() const { return members_[static_cast<size_t>(rank_)]; }
  FlightRecorder& recorder() { return recorder_; }
  /// `stop` is called once, when this rank learns that the group is broken.
  void on_broken(std::function<void()> stop) { on_broken_ = std::move(stop); }

  /// Blocks until `ready()`, which may do work. Throws TimeoutError or PeerLostError, and breaks the group.
  template <class Ready>
  void wait_until(Ready ready, const Awaited& awaited, std::chrono::milliseconds timeout) {
    Backoff backoff(oversubscribed_);
    // The clock is first read when the spin is over: what ends within it never pays for it.
    Clock::time_point deadline{};
    while (!ready()) {
      if (backoff.relax()) continue;
      const auto now = Clock::now();
      if (deadline == Clock::time_point{}) deadline = now + timeout;
      check(awaited, now >= deadline, timeout);
      MemberDoorbell& bell = doorbells_[rank_];
      const uint32_t rings = bell.rings.load(std::memory_order_relaxed);
      bell.sleeping.store(1, std::memory_order_relaxed);
      // Pairs with the fence before ring_sleepers: either the peer sees the sleeper, or the sleeper what the
      // peer did.
      full_fence();
      const bool done = ready();
      if (!done) {
        constexpr std::chrono::nanoseconds kLookAtPeersEvery = std::chrono::milliseconds(50);
        futex_wait(bell.rings, rings, std::min<std::chrono::nanoseconds>(kLookAtPeersEvery, deadline - now));
      }
      bell.sleeping.store(0, std::memory_order_relaxed);
      if (done) return;
    }
  }

  /// Wakes the members that sleep. A sequentially consistent fence must stand between what this rank did and
  /// this call, or a peer that falls asleep in between would miss it.
  void ring_sleepers();
  /// The same for one.
  void ring(int member);

  /// Has every other member left or died?
  bool all_others_are_gone();
  /// Does no other member touch this rank's memory on behalf of this group any more? Also right after
  /// leave().
  bool all_others_have_stopped();
  bool is_broken() const { return broken_ != nullptr; }
  /// Tells the others that this rank takes no further part.
  void leave();

  /// Throws the first cause once the group is broken, by whichever rank; ValueError in a fork of this rank.
  void check_broken();
  /// Breaks the group for all ranks and throws.
  [[noreturn]] void fail(FailureKind kind, const std::string& message, int lost_rank = -1,
                         const RankSet& missing = {});

 private:
  void check(const Awaited& awaited, bool timed_out, std::chrono::milliseconds timeout);
  bool is_gone(int member, std::string& how);
  std::string describe_peer(int member) const;
  void set_broken(FailureKind kind, const std::string& message, int lost_rank, const RankSet& missing);
  void print_flight_recorder() const;

  const Segment& segment_;
  int area_;
  uint32_t generation_;
  std::vector<int> members_;
  int rank_;
  RankProcess process_;
  bool oversubscribed_;
  FlightRecorder recorder_;
  FailureRecord* failure_;
  MemberProgress* progress_;
  MemberDoorbell* doorbells_;
  std::vector<UniqueFd> pidfds_;
  std::function<void()> on_broken_;
  std::exception_ptr broken_;
};

}  // namespace lockstep::shm
