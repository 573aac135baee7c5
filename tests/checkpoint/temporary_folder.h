// A directory for one test case, and how long it waits for a Writer.
#pragma once

#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <string>

namespace lockstep {

/// Even where many tests run at once.
inline constexpr std::chrono::minutes write_deadline{5};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-checkpoint-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep
