// How fast ranks on different cores exchange messages.
#pragma once

#include <vector>

namespace lockstep::topo {

struct Speed {
  double latency_us = 0;       ///< of 8 bytes, one way
  double gigabytes_per_s = 0;  ///< of 4 MiB, one way
};

/// Square: [i][j] between a rank on cpus[i] and one on cpus[j]. What lies on the diagonal is zero.
using SpeedMatrix = std::vector<std::vector<Speed>>;

/// Two processes for every pair, each bound to its core, send each other messages through the shared-memory
/// core. Takes about 0.1 s a pair. The calling process must have a single thread. Throws Error when a
/// measurement fails.
SpeedMatrix measure(const std::vector<int>& cpus);

}  // namespace lockstep::topo
