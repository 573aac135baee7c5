// A folder of checkpoint-<step>/ directories: their names, how one is published, pruned, and what a killed run
// has left. No tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/files.h"

namespace lockstep::checkpoint {

/// "checkpoint-<step>", as transformers names them.
std::string checkpoint_name(int64_t step);
/// The step of such a name; nullopt for any other name.
std::optional<int64_t> step_of(std::string_view name);

/// The file in the folder that names the newest checkpoint.
inline constexpr const char* kLatestName = "latest";

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

/// A directory that may be a checkpoint.
struct Candidate {
  std::filesystem::path path;  ///< the directory
  int64_t step = 0;            ///< the number in its name
};
/// Every checkpoint directory of the folder, complete or not, the newest first; of one step, one that is
/// about to be replaced last. Empty where there is no folder.
std::vector<Candidate> candidates(const std::filesystem::path& folder);

/// Called with a path and the reason why it does not count.
using OnRefused = std::function<void(const std::filesystem::path& path, const std::string& reason)>;

/// The newest directory of `folder` whose manifest and files are as they were written, whatever the file
/// `latest` says; nullopt: none. Every newer one is refused, and so is a `latest` that names none of these. Reads
/// all files of what it looks at. Blocks.
std::optional<Candidate> find_latest(const std::filesystem::path& folder, const OnRefused& on_refused);

}  // namespace lockstep::checkpoint
