#include "launcher/output/log_file.h"

#include <fmt/format.h>

#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

LogFile::LogFile(std::string path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (!fd_.valid())
    throw FileError(fmt::format("cannot create the log file {}: {}", path_, std::strerror(errno)));
}

void LogFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::write(fd_.get(), bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      if (error_ == 0) error_ = errno;
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(size));
  }
}

std::optional<std::string> LogFile::take_error() {
  if (error_ == 0 || told_) return std::nullopt;
  told_ = true;
  return fmt::format("{} cannot be written: {}", path_, std::strerror(error_));
}

void make_directories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw FileError(fmt::format("cannot create the directory {}: {}", path, error.message()));
}

std::string make_unique_directory(const std::string& prefix) {
  std::string path = prefix + "_XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    throw FileError(fmt::format("cannot create a directory {}: {}", path, std::strerror(errno)));
  }
  return path;
}

}  // namespace lockstep::launcher
