// Reading whole files, and writing them so that a crash leaves the old file or the new one, never half of
// one.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

/// The bytes of `path`. Throws FileError naming it when it is missing or unreadable.
std::string read_file(const std::filesystem::path& path);

/// U+FEFF in UTF-8, with which some editors begin a text file.
inline constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

/// `text` without a byte order mark at its start.
inline std::string_view skip_byte_order_mark(std::string_view text) {
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  return text;
}

/// read_file() of lines of text: without a byte order mark at the start.
std::string read_text_file(const std::filesystem::path& path);

/// Replaces `path` by `content`: temporary sibling, fsync, rename, fsync of the directory.
/// Throws FileError; then `path` is as it was and no temporary file remains.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Writes content that is produced in pieces in this way: `produce` gets a function that appends bytes.
void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(const std::function<void(std::string_view)>&)>& produce);

/// Removes the temporary siblings that processes have left which were killed while they replaced `path`. While nobody replaces it.
void remove_unfinished(const std::filesystem::path& path);

}  // namespace lockstep
