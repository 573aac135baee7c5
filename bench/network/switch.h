// A network switch in user space, with delay: not every kernel has netem.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace lockstep::bench {

/// What a cable does.
struct CableSpeed {
  uint64_t bits_per_second = 0;  ///< 0: no limit
  int64_t one_way_ns = 0;
};

/// Starts a process that joins the network namespaces of these processes, in each of which it makes the interface cable0.
/// Blocks until those are there. It ends with the calling process. Returns its id. Throws Error. For processes with a single
/// thread.
pid_t start_switch(const std::vector<pid_t>& machines, const CableSpeed& speed);

}  // namespace lockstep::bench
