// A backend whose operations are in the timeline.
#pragma once

#include <memory>

#include "lockstep/comm/process_group/impl.h"

namespace lockstep {

/// Wraps `group`: each operation records a span (timeline/timeline.h), and so does each wait for one.
std::shared_ptr<ProcessGroup::Impl> make_traced(std::shared_ptr<ProcessGroup::Impl> group);

}  // namespace lockstep
