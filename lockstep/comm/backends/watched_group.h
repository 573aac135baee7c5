// A backend whose operations the launcher sees.
#pragma once

#include <memory>

#include "lockstep/comm/process_group/impl.h"
#include "lockstep/shm/pulse.h"

namespace lockstep {

/// Wraps `group`: what it starts and waits for is noted in `pulse`. For backends that do not go through the
/// launcher's segment.
std::shared_ptr<ProcessGroup::Impl> make_watched(std::shared_ptr<ProcessGroup::Impl> group,
                                                 std::shared_ptr<shm::Pulse> pulse);

}  // namespace lockstep
