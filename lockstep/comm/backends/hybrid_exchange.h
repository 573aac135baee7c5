// scatter, gather and all_to_all over several machines: shared memory inside a machine, one message from each machine to each
// other.
#pragma once

#include <chrono>

#include "lockstep/comm/backends/hybrid_operations.h"

namespace lockstep::backends {

bool is_exchange(Collective::Kind kind);

/// start_as_member() for these kinds. `timeout`: of what it starts in shared memory.
MemberPart start_exchange(HybridState& state, const HybridOperation& operation,
                          std::chrono::milliseconds timeout);

/// run_as_leader() for these kinds. Throws ValueError too, once all has ended: this rank expects other numbers of elements
/// than others send it.
void run_exchange(HybridState& state, const HybridOperation& operation);

}  // namespace lockstep::backends
