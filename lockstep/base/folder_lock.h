// One process at a time in a folder.
#pragma once

#include <chrono>
#include <filesystem>

#include "lockstep/base/fd.h"

namespace lockstep {

/// Holds an exclusive lock on a folder until it is destroyed; the system drops it with the process. The folder is made if
/// it is not there. Other processes of this node, and of others where the file system passes locks on, wait.
class FolderLock {
 public:
  /// Blocking, for `timeout` at most. Throws FileError when the folder cannot be made or locked, and TimeoutError naming
  /// it.
  explicit FolderLock(const std::filesystem::path& folder,
                      std::chrono::seconds timeout = std::chrono::hours(2));

 private:
  UniqueFd fd_{};
};

}  // namespace lockstep
