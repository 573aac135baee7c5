// The time of a record.
#pragma once

#include <string>

namespace lockstep {

/// Seconds since 1970 with microseconds, "1795369332.957712".
void append_wall_time(std::string& out, double seconds);

/// "20261122_174212", local time.
std::string compact_date(double seconds);

}  // namespace lockstep
