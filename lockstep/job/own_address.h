// By which address the other ranks of a job reach this machine.
#pragma once

#include <string>

#include "lockstep/job/launch_environment.h"

namespace lockstep::job {

/// The address of an interface that GLOO_SOCKET_IFNAME allows (interface_choice.h): LOCKSTEP_LOCAL_ADDR if it is on one of
/// them, else that of the first. Without the variable LOCKSTEP_LOCAL_ADDR, else the address by which this machine reaches
/// MASTER_ADDR, else 127.0.0.1. May look a name up. Throws ValueError, which lists the interfaces, if none is allowed.
std::string own_address(const LaunchEnvironment& launch);

/// Whether only this machine reaches `host`, an address as numbers: 127.0.0.0/8 or ::1.
bool is_loopback(const std::string& host);

}  // namespace lockstep::job
