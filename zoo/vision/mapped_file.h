// A file's bytes in memory, without reading them first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "lockstep/base/fd.h"

namespace lockstep::vision {

/// A read-only mapping of a whole file: pages are read when they are touched, and shared by all processes of the
/// machine. Copies share it. Thread-safe.
class MappedFile {
 public:
  /// Throws FileError naming the file when it is missing, unreadable, a directory or empty.
  explicit MappedFile(std::filesystem::path path);
  const std::filesystem::path& path() const { return path_; }
  size_t size() const { return size_; }
  const uint8_t* data() const { return static_cast<const uint8_t*>(memory_.get()); }
  /// Throws FileError where the file was cut off since: touching its lost pages would end the process (SIGBUS).
  void check_whole() const;
  std::string_view bytes() const { return {static_cast<const char*>(memory_.get()), size_}; }

 private:
  std::filesystem::path path_;
  size_t size_ = 0;
  std::shared_ptr<const UniqueFd> fd_{};
  std::shared_ptr<const void> memory_{};
};

}  // namespace lockstep::vision
