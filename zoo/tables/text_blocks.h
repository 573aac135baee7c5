// The bytes of a text file, a block at a time, unpacked where the file is compressed.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/zoo/tables/table_format.h"

namespace lockstep::tables {

/// A window over the file: bytes that were read and not yet consumed.
class TextBlocks {
 public:
  /// Throws FileError when the file cannot be opened.
  TextBlocks(const std::filesystem::path& path, TableCompression compression, size_t block_bytes);
  ~TextBlocks();

  std::string_view view() const { return {buffer_.data() + begin_, end_ - begin_}; }
  /// Nothing follows view().
  bool at_end() const { return at_end_; }
  void consume(size_t bytes) { begin_ += bytes; }
  /// Reads until view() holds a block, or twice what it holds if that is a block already, or all the rest. Throws
  /// FileError.
  void fill();

 private:
  class Input;
  std::filesystem::path path_;
  std::unique_ptr<Input> input_;
  size_t block_bytes_;
  std::vector<char> buffer_{};
  size_t begin_ = 0, end_ = 0;
  bool at_end_ = false;
};

}  // namespace lockstep::tables
