// The name of this machine.
#pragma once

#include <string>

namespace lockstep {

/// This machine's name as it is set, without a domain that is looked up. "localhost" if it has none.
std::string host_name();

}  // namespace lockstep
