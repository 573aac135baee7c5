// Handing a file descriptor to other processes of this machine and user.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::job {

/// Gives `fd` to `receivers` processes that ask at `name`, an abstract socket address: no file, gone with
/// this process. Processes of other users are turned away. Throws TimeoutError saying how many came,
/// ValueError when the name is taken. Blocks until all have it.
void hand_out_descriptor(const std::string& name, int fd, int receivers, std::chrono::milliseconds timeout);

/// Asks at `name` until there is an answer; close-on-exec. Throws TimeoutError. Blocks.
UniqueFd receive_descriptor(const std::string& name, std::chrono::milliseconds timeout);

}  // namespace lockstep::job
