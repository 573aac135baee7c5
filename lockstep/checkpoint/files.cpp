#include "lockstep/checkpoint/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/file.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, const fs::path& path, int error = errno) {
  throw FileError(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error)));
}

class PosixFile : public Files::File {
 public:
  explicit PosixFile(fs::path path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (!fd_.valid()) fail("create", path_);
  }

  void write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write", path_);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }

  void sync() override {
    if (::fsync(fd_.get()) != 0) fail("sync", path_);
  }

 private:
  fs::path path_;
  UniqueFd fd_;
};

class PosixFiles : public Files {
 public:
  std::unique_ptr<File> create(const fs::path& path) override { return std::make_unique<PosixFile>(path); }

  std::string read(const fs::path& path) override { return read_file(path); }

  void rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) {
      const int error = errno;
      fail(fmt::format("rename {} to", from.string()), to, error);
    }
  }

  void remove(const fs::path& path) override {
    if (::remove(path.c_str()) != 0 && errno != ENOENT) fail("remove", path);
  }

  bool make_directory(const fs::path& path) override {
    if (::mkdir(path.c_str(), 0777) == 0) return true;
    const int error = errno;
    if (error == EEXIST && fs::is_directory(path)) return false;
    fail("create directory", path, error);
  }

  void sync_directory(const fs::path& path) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid() || ::fsync(fd.get()) != 0) fail("sync directory", path);
  }

  std::vector<Entry> list(const fs::path& path) override {
    std::vector<Entry> entries;
    std::error_code error;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      struct stat status {};
      if (::lstat(it->path().c_str(), &status) != 0) {
        if (errno == ENOENT) continue;  // removed meanwhile
        fail("read", it->path());
      }
      entries.push_back({it->path().filename().string(), static_cast<uint64_t>(status.st_size)});
    }
    if (error) fail("list", path, error.value());
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return entries;
  }
};

}  // namespace

std::shared_ptr<Files> posix_files() { return std::make_shared<PosixFiles>(); }

void remove_tree(Files& files, const fs::path& path) {
  const fs::file_status status = fs::symlink_status(path);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status)) {
    for (const auto& entry : files.list(path)) remove_tree(files, path / entry.name);
  }
  files.remove(path);
}

void make_directories(Files& files, const fs::path& path) {
  const fs::path above = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (fs::is_directory(path)) return;
  if (!fs::exists(above)) make_directories(files, above);
  if (files.make_directory(path)) files.sync_directory(above);
}

void write_synced(Files& files, const fs::path& path, std::string_view content) {
  files.remove(path);
  const auto file = files.create(path);
  file->write(content);
  file->sync();
}

}  // namespace lockstep::checkpoint
