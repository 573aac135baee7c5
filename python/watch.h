// Collectives of torch.distributed's own backends, as lockrun's hang watch sees them.
#pragma once

#include <optional>

#include "lockstep/shm/pulse.h"

namespace lockstep::python {

/// From here on lockrun sees this rank, and each collective that the process starts, of any backend, until the process ends.
/// Nothing where no lockrun has started it, or another process of this rank is watched.
void begin_watch();
/// Before the backend lockstep joins the segment for all ranks: the process is in it once.
void hand_over_watch();
/// After it has joined: that backend's operations there are parts of collectives over several machines.
void count_calls_in_watch();

/// A thread of this process waits for its peers in a call that tells nobody.
class WaitingForPeers {
 public:
  void begin();
  void end() { waiting_.reset(); }

 private:
  std::optional<shm::Pulse::Waiting> waiting_;
};

}  // namespace lockstep::python
