// Programs of the system, such as apt-get, and a place for what they write.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::tools {

/// A new directory, removed with all that is in it.
class TemporaryDirectory {
 public:
  /// In the system's place for such; or in `parent`, for what is to be renamed to a name there. Throws FileError.
  explicit TemporaryDirectory(const std::filesystem::path& parent = {});
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs a program in `directory` and waits for it. Its output goes to our standard error. Throws Error with `help`.
void run_program(const std::vector<std::string>& words, const std::filesystem::path& directory,
                 const std::string& help);

}  // namespace lockstep::tools
