// A backend whose collectives are compared between the ranks before they run.
#pragma once

#include <memory>

#include "lockstep/comm/process_group/impl.h"

namespace lockstep {

/// Wraps `group`. Before each collective the ranks tell each other what they call, with which shape, dtype,
/// root and operator, and how many collectives came before; where that differs all of them throw
/// MismatchError, which quotes two ranks, and on Gloo a TimeoutError names the ranks that do not come.
/// Messages between two ranks are not compared. Collectives no longer overlap with what follows them.
std::shared_ptr<ProcessGroup::Impl> make_checked(std::shared_ptr<ProcessGroup::Impl> group);

/// From now on `group` compares nothing, if it did: for the group of a step, in which the ranks meet. Comparing would block where
/// such a meeting only starts, and its ranks look around while they wait.
void stop_checking(ProcessGroup::Impl& group);

}  // namespace lockstep
