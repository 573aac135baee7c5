// When something that failed is tried again. Pure: no effects.
#pragma once

#include <algorithm>

namespace lockstep::launcher {

/// Seconds to wait `elapsed` seconds after the first try: a tenth of that, from 5 ms to 250 ms. So machines
/// that are started together meet at once, and one that waits for long asks 4 times a second.
inline double retry_pause(double elapsed) { return std::clamp(elapsed / 10, 0.005, 0.25); }

}  // namespace lockstep::launcher
