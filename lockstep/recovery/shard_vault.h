// What a rank alone has, its part of a divided optimizer or statistics of its own batches, where it outlives the process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/state/state_dict.h"

namespace lockstep::shm {
class SetupLog;
}

namespace lockstep::detail {

/// In a rank's segment, behind its set-up log: the states of before and after the last step. One thread at a time.
/// A new process finds in it what its predecessor has written.
class ShardVault {
 public:
  /// One state has at most so many, with its description.
  static constexpr size_t kMostBytes = size_t{512} << 20;

  /// `number`: which of the rank's vaults, 0 to 7.
  ShardVault(shm::SetupLog& log, size_t number);

  /// The state once `steps` have ended, in the place of the oldest, or of one that a step has written which is repeated.
  /// Throws Error where there is no memory.
  void write(int64_t steps, const StateDict& state);
  /// As write(), but never in the place of the one that was written with `kept` steps.
  void write_beside(int64_t kept, int64_t steps, const StateDict& state);
  /// The newest state of at most `steps`. Throws Error if there is none.
  StateDict read(int64_t steps) const;
  /// Is there one of exactly `steps`?
  bool has(int64_t steps) const;

 private:
  struct Slot;
  Slot& slot(size_t which) const;
  void write_to(size_t which, int64_t steps, const StateDict& state);
  shm::SetupLog& log_;
  size_t number_;
};

}  // namespace lockstep::detail
