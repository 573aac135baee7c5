// By which address the other ranks of a job reach this machine.
#pragma once

#include <string>

#include "lockstep/job/launch_environment.h"

namespace lockstep::job {

/// LOCKSTEP_LOCAL_ADDR, else the address of the interface GLOO_SOCKET_IFNAME (the first, where it lists
/// several), else the one by which this machine reaches MASTER_ADDR, else 127.0.0.1. May look a name up.
/// Throws ValueError for an interface that is not there.
std::string own_address(const LaunchEnvironment& launch);

}  // namespace lockstep::job
