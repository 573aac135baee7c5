// Limits of the system that a job meets.
#pragma once

#include <string>

namespace lockstep::launcher {

/// Raises this process's limit of open files (ulimit -n) to what it may have, 65536 at most: a rank takes three and more.
void raise_open_files();

/// Why no process could be made, with errno `error`: the reason, and which limit is reached.
std::string describe_fork_failure(int error);

/// Throws Error if there is no /proc, which lockrun cannot do without.
void check_proc();

}  // namespace lockstep::launcher
