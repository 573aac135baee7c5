// What this machine offers to a job.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/options.h"

namespace lockstep::launcher {

/// Cores that this process may use, and NVIDIA GPUs that it can see.
Machine inspect_machine();

/// Cores granted by the text of cgroup v2's cpu.max ("200000 100000" is 2), or nullopt for "max ...".
std::optional<double> cores_of_cpu_max(std::string_view text);

/// Random identifier of a run.
std::string random_id();

}  // namespace lockstep::launcher
