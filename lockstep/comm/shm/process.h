// Is another process still alive?
#pragma once

#include "lockstep/base/fd.h"

namespace lockstep::shm {

/// True once the process `pid` has ended, a zombie included. `pidfd` is opened on the first call and names
/// the process from then on, whoever gets its number later. Does not block.
bool process_ended(UniqueFd& pidfd, int pid);

}  // namespace lockstep::shm
