// Everything that saving does to the file system, behind one interface: tests record it or make it fail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// The operations that saving is made of. All throw FileError that names the path and the system's reason, and
/// block. Thread-safe.
class Files {
 public:
  /// An open new file; the destructor closes it.
  class File {
   public:
    virtual ~File() = default;
    /// Appends.
    virtual void write(std::string_view bytes) = 0;
    /// fsync: what was written survives a crash; the file's name needs sync_directory().
    virtual void sync() = 0;
  };

  struct Entry {
    std::string name;
    uint64_t bytes = 0;  ///< of a file
  };

  virtual ~Files() = default;
  /// The file must not exist.
  virtual std::unique_ptr<File> create(const std::filesystem::path& path) = 0;
  virtual std::string read(const std::filesystem::path& path) = 0;
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// A file or an empty directory; nothing happens where there is none.
  virtual void remove(const std::filesystem::path& path) = 0;
  /// Returns false where it exists. The directory above must exist.
  virtual bool make_directory(const std::filesystem::path& path) = 0;
  /// fsync of a directory: names that were made, renamed or removed in it survive a crash.
  virtual void sync_directory(const std::filesystem::path& path) = 0;
  /// In alphabetical order.
  virtual std::vector<Entry> list(const std::filesystem::path& path) = 0;
};

/// The system's files.
std::shared_ptr<Files> posix_files();

/// Removes a file, or a directory and everything in it; nothing happens where there is none.
void remove_tree(Files& files, const std::filesystem::path& path);

/// Makes a directory and those above it, so that they survive a crash.
void make_directories(Files& files, const std::filesystem::path& path);

/// Writes a file and syncs it; one of that name is removed first. The name needs sync_directory().
void write_synced(Files& files, const std::filesystem::path& path, std::string_view content);

}  // namespace lockstep::checkpoint
