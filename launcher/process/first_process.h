// lockrun as the first process of a container.
#pragma once

namespace lockstep::launcher {

/// The kernel gives process 1 of a PID namespace all orphans to reap, and keeps signals from it that it has
/// no handler for. So where this is process 1 it forks: the parent reaps, passes signals on and ends with the
/// child's exit code; the child returns from here. Elsewhere nothing happens.
void leave_process_1_to_a_parent();

}  // namespace lockstep::launcher
