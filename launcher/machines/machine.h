// What this machine offers to a job.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "launcher/cli/options.h"

namespace lockstep::launcher {

/// Cores that this process may use, and NVIDIA GPUs that it can see.
Machine inspect_machine();

/// GPUs that a program sees: those of CUDA_VISIBLE_DEVICES, whose value is `visible` (as in CUDA, empty or -1: none), or all whose
/// nodes are in `devices`, which is /dev.
int count_gpus(const std::optional<std::string>& visible, const std::filesystem::path& devices);

/// Random identifier of a run.
std::string random_id();

}  // namespace lockstep::launcher
