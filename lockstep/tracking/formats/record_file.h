// A file that grows by whole records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/base/fd.h"

namespace lockstep {

/// Each record is one write, so that a crash of the program loses none and other programs can read the file
/// meanwhile.
class RecordFile {
 public:
  RecordFile() = default;
  /// Replaces the file by `content`, atomically, and opens it to append. Makes its folder. Throws FileError.
  RecordFile(std::filesystem::path path, std::string_view content);
  /// Puts `content` in the file's place, whole or not at all as far as a crash of the program goes. It does not wait
  /// for the disk where there is little of it. Throws FileError.
  void replace(std::string_view content);
  bool is_open() const { return fd_.valid(); }
  /// Throws FileError; then what was written of the record is taken back.
  void append(std::string_view record);
  uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  void close() { fd_.reset(); }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t size_ = 0;
};

/// The bytes of `path`, or none where there is no such file. Throws FileError.
std::string read_file_or_nothing(const std::filesystem::path& path);

}  // namespace lockstep
