// What happens to rows that cannot be read: an error that names them, or a count.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::tables {

class BadRows {
 public:
  BadRows(std::filesystem::path path, bool skip) : path_(std::move(path)), skip_(skip) {}

  /// `record` counts from 0; line and column where there are any (0, ""). Throws FileError unless rows are skipped.
  void add(int64_t record, int64_t line, std::string_view column, std::string_view what);
  /// Does so for a block whose rows are not looked at in order, each row once at most; end_block() throws,
  /// for the first of them in the file.
  /// `count`: so many rows from `record` on.
  void note(int64_t record, int64_t line, std::string_view column, std::string_view what, int64_t count = 1);
  void end_block();
  const std::filesystem::path& path() const { return path_; }
  int64_t count() const { return count_; }
  const std::string& first() const { return first_; }

 private:
  std::filesystem::path path_;
  bool skip_;
  int64_t count_ = 0;
  std::string first_{};
  struct Noted {
    int64_t record = 0, count = 0;
    std::string message{};
  };
  Noted noted_{};  // the first one of the block

  std::string message_of(int64_t record, int64_t line, std::string_view column, std::string_view what) const;
};

/// A value as messages show it: in quotes, cut when it is long, on one line.
std::string shown(std::string_view value);

}  // namespace lockstep::tables
