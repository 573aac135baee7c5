// Authenticated messages between lockruns over a socket.
#pragma once

#include "lockstep/job/wire.h"

namespace lockstep::launcher {

using job::Wire;

}  // namespace lockstep::launcher
