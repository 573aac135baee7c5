// How ranks that still have inputs and ranks that have none keep in step.
#pragma once

#include <cstdint>

#include "lockstep/comm/process_group.h"

namespace lockstep::detail {

/// One join(). Before anything collective, every active rank announces what comes; ranks without inputs left
/// answer that they have joined, and do their part of it with zeros.
class JoinSession {
 public:
  enum class Phase : uint8_t { forward, backward };
  struct Answer {
    bool everyone_joined = false;
    int model = 0;  ///< what the active ranks are about to do
    Phase phase = Phase::forward;
    int highest_active_rank = 0;
    int divisor = 1;
    int last_joined_rank = 0;  ///< once everyone has joined: the highest of those that shadowed nobody
  };

  JoinSession(ProcessGroup group, bool divide_by_initial_world_size, bool throw_on_early_termination);

  /// Of an active rank. Throws Error when active ranks are about to do different things, and, with
  /// throw_on_early_termination, when a rank has joined. Blocks.
  Answer announce(int model, Phase phase) const;
  /// Of a rank that has no inputs left. `shadowed`: it has taken part in something since.
  Answer announce_joined(bool shadowed) const;

 private:
  Answer exchange(int64_t own) const;

  ProcessGroup group_;
  bool divide_by_initial_world_size_, throw_on_early_termination_;
};

}  // namespace lockstep::detail
