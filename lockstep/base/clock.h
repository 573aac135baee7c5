// Clocks as seconds.
#pragma once

#include <ctime>

namespace lockstep {

inline double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Seconds since an arbitrary point, never set back; the same in all processes. For deadlines.
inline double monotonic_seconds() { return seconds_of(CLOCK_MONOTONIC); }

/// Seconds since 1970. For reports.
inline double wall_seconds() { return seconds_of(CLOCK_REALTIME); }

}  // namespace lockstep
