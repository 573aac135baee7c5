// A folder of checkpoint-<step>/ directories: their names, and which are there. No tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// "checkpoint-<step>", as transformers names them.
std::string checkpoint_name(int64_t step);
/// The step of such a name; nullopt for any other name.
std::optional<int64_t> parse_step(std::string_view name);

/// The file in the folder that names the newest checkpoint.
inline constexpr const char* kLatestName = "latest";

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
