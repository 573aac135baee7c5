// What this process uses of its machine.
#pragma once

namespace lockstep {

/// Counts from its construction on.
class ProcessUsage {
 public:
  ProcessUsage();
  struct Used {
    double cpu_load = 0;        ///< processor time over time: 2 is two cores
    double memory_mb = 0;       ///< resident now, with shared memory (1e6 bytes)
    double peak_memory_mb = 0;  ///< the most that was resident
  };
  /// The load is that since the last call.
  Used since_last();

 private:
  double seconds_, processor_;
};

}  // namespace lockstep
