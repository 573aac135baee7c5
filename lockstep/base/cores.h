// How many cores this process may use.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep {

/// Cores that this process may use: the smaller of its affinity mask and its cgroup's CPU quota (v1 or v2, of
/// its own group and those above it; a part of a core counts as one), at least 1.
int usable_cores();

/// Cores granted by the text of cgroup v2's cpu.max ("200000 100000" is 2), or nullopt for "max ...".
std::optional<double> cores_of_cpu_max(std::string_view text);

}  // namespace lockstep
