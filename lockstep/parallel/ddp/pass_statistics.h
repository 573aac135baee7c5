// How many passes there were and what they took, for DistributedDataParallel::logging_data().
#pragma once

#include <chrono>
#include <cstdint>

#include "lockstep/parallel/ddp/gradient_buckets.h"
#include "lockstep/parallel/ddp/pass.h"

namespace lockstep {

struct PassStatistics {
  /// `compute` lasts from the pass's start to its last gradient, `comm` from the first bucket's leaving to
  /// the last one's return; `overlap` is the part of `comm` before the last gradient.
  struct Times {
    std::chrono::nanoseconds compute{}, comm{}, overlap{};
  };
  int64_t passes = 0, timed_passes = 0;
  int64_t begun = 0;                  ///< passes, also those that ended in an error
  Times last, sum;                    ///< of timed passes
  size_t unused_parameter_bytes = 0;  ///< of this rank, in the last pass
  bool has_rebuilt_buckets = false;

  /// Is the next pass among those that are timed? Reading the clock six times shows in a step of 0.1 ms. As often as
  /// Python's DDP: the first steps and then each hundredth; all of them where somebody reads them.
  bool times_next_pass() const;
  /// `pass` has ended well, now; its last gradient came at `compute_end`.
  void count(const Pass& pass, Pass::Clock::time_point compute_end, const GradientBuckets& buckets);
};

}  // namespace lockstep
