// `lockstep data fetch`: public data sets, downloaded once, verified and unpacked.
#pragma once

#include "lockstep/cli/command_line.h"

namespace lockstep::tools {

void add_fetch(CommandLine data, Action& action);

}  // namespace lockstep::tools
