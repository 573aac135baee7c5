// Whether others use the machine that is about to be measured.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::bench {

/// Cores in use on average between two readings of /proc/stat, time taken by other guests of the host
/// included; 0 where they cannot be read.
double busy_cores(std::string_view before, std::string_view after);

/// The warning for `busy` of `cores` cores in use; empty where they are idle enough.
std::string busy_warning(double busy, int cores);

/// Looks for 0.2 s and writes the warning, if there is one, to standard error.
void warn_if_busy();

}  // namespace lockstep::bench
