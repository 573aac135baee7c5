// How a checkpoint gets its name in a folder, what is pruned, and what a killed run has left. Not installed. No tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/files.h"

namespace lockstep::checkpoint {

/// What the name of check_shared_folder()'s file begins with; six characters follow.
inline constexpr std::string_view kProbeStart = ".shared-";

/// Where the ranks write the checkpoint of `step` before it has its name.
std::filesystem::path temporary_directory(const std::filesystem::path& folder, int64_t step);

/// Gives the synced temporary directory of `step` its name; one of that name is set aside. Afterwards the new
/// one survives a crash; at any moment before, the old one does. After a failure it can be called again.
void publish(Files& files, const std::filesystem::path& folder, int64_t step);
/// After publish(): removes the checkpoint that was set aside, if there was one.
void remove_replaced(Files& files, const std::filesystem::path& folder, int64_t step);
/// In place of publish(): gives the checkpoint that was set aside its name back, if there is one.
void restore_replaced(Files& files, const std::filesystem::path& folder, int64_t step);

/// Makes the file `latest` name the checkpoint of `step`.
void point_to(Files& files, const std::filesystem::path& folder, int64_t step);

/// Removes checkpoints until `limit` are left, the oldest first, those after `step` (of a run that was begun
/// again from an earlier one) before all others; never that of `step` nor those whose names are in `kept`. 0:
/// removes none.
void prune(Files& files, const std::filesystem::path& folder, int64_t step, int limit,
           const std::set<std::string>& kept);

/// Removes what killed runs have left: temporary directories, half-removed checkpoints and those that were set
/// aside. One of the latter whose successor is not complete gets its name back. Nobody may write into the
/// folder meanwhile.
void clean(Files& files, const std::filesystem::path& folder);

}  // namespace lockstep::checkpoint
