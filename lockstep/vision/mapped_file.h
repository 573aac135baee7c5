// A file's bytes in memory, without reading them first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

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
  std::string_view bytes() const { return {static_cast<const char*>(memory_.get()), size_}; }

 private:
  std::filesystem::path path_;
  size_t size_ = 0;
  std::shared_ptr<const void> memory_{};
};

}  // namespace lockstep::vision
