// Where a job's ranks put their parts, and how one file is made of them.
//
// A part is locked while its rank lives, so whoever comes last, a rank that leaves, lockrun or
// `lockstep timeline`, can tell that no other will write and merges them. A killed rank's lock goes with it.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::timeline {

/// The file to write (a path).
inline constexpr const char* kVariable = "LOCKSTEP_TIMELINE";
/// Set by a launcher that merges the parts itself, once its job has ended: the folder for them.
inline constexpr const char* kFolderVariable = "LOCKSTEP_TIMELINE_PARTS";

/// What a launcher holds for as long as its job runs: the folder for the parts, merged in the end.
class JobParts {
 public:
  /// Nothing where LOCKSTEP_TIMELINE is unset. `id` tells jobs apart. Throws FileError as make_parts_folder.
  explicit JobParts(const std::string& id);
  JobParts(const JobParts&) = delete;
  JobParts& operator=(const JobParts&) = delete;
  /// Writes the file; prints why that fails, where it does.
  ~JobParts();
  /// For the ranks' LOCKSTEP_TIMELINE_PARTS; empty where there is no timeline.
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path target_, folder_;
};

/// A folder beside `target`, hidden; `id` tells jobs apart.
std::filesystem::path parts_folder(const std::filesystem::path& target, const std::string& id);

/// Makes the folder, unless another rank has. Throws FileError naming the file that is to be written.
void make_parts_folder(const std::filesystem::path& folder, const std::filesystem::path& target);

/// Makes `target` of the parts in `folder` and removes them. False, with nothing done, where a rank still
/// writes or there is nothing. Throws FileError; then the parts stay.
bool merge_parts(const std::filesystem::path& folder, const std::filesystem::path& target);

/// Merges whatever jobs that were ended by force left beside `target`. True where there was something.
bool merge_leftovers(const std::filesystem::path& target);

/// merge_parts for those who end and cannot throw: prints what went wrong.
void merge_parts_or_say(const std::filesystem::path& folder, const std::filesystem::path& target);

}  // namespace lockstep::timeline
