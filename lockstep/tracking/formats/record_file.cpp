#include "lockstep/tracking/formats/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep {
namespace {

/// Where replace() writes what follows.
std::string sibling_of(const std::filesystem::path& path) {
  return (path.parent_path() / fmt::format(".{}.new", path.filename().string())).string();
}

}  // namespace

RecordFile::RecordFile(std::filesystem::path path, std::string_view content)
    : path_(std::move(path)), size_(content.size()) {
  if (path_.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    if (error) {
      throw FileError(
          fmt::format("cannot create directory {}: {}", path_.parent_path().string(), error.message()));
    }
  }
  // A process that was killed may have written this file.
  ::unlink(sibling_of(path_).c_str());
  remove_unfinished(path_);
  write_file_atomically(path_, content);
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!fd_.valid()) throw FileError(fmt::format("cannot open {}: {}", path_.string(), std::strerror(errno)));
}

void RecordFile::replace(std::string_view content) {
  // A crash of the machine may lose what has not reached the disk: a young file has little to lose.
  constexpr size_t kYoung = size_t{1} << 16;
  if (content.size() > kYoung) {
    *this = RecordFile(path_, content);
    return;
  }
  const std::string sibling = sibling_of(path_);
  RecordFile next;
  next.path_ = sibling;
  next.fd_.reset(::open(sibling.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  try {
    if (!next.fd_.valid()) throw FileError(fmt::format("cannot open {}: {}", sibling, std::strerror(errno)));
    next.append(content);
    if (::rename(sibling.c_str(), path_.c_str()) != 0) {
      throw FileError(fmt::format("cannot replace {}: {}", path_.string(), std::strerror(errno)));
    }
  } catch (...) {
    ::unlink(sibling.c_str());
    throw;
  }
  next.path_ = path_;
  *this = std::move(next);
}

void RecordFile::append(std::string_view record) {
  size_t written = 0;
  while (written < record.size()) {
    const ssize_t count = ::write(fd_.get(), record.data() + written, record.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int cause = errno;
      // Half a record at the end would hide what a resumed run writes behind it.
      if (::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0) {
        throw FileError(
            fmt::format("cannot write and cannot shorten {}: {}", path_.string(), std::strerror(cause)));
      }
      throw FileError(fmt::format("cannot write {}: {}", path_.string(), std::strerror(cause)));
    }
    written += static_cast<size_t>(count);
  }
  size_ += record.size();
}

std::string read_file_or_nothing(const std::filesystem::path& path) {
  return std::filesystem::exists(path) ? read_file(path) : std::string();
}

}  // namespace lockstep
