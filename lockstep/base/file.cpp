#include "lockstep/base/file.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep {
namespace {

constexpr std::string_view kRandomCharacters = "abcdefghijklmnopqrstuvwxyz0123456789";
constexpr size_t kRandomLength = 6;

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// What the names of its temporary siblings begin with.
std::string temporary_prefix(const std::filesystem::path& path) {
  return fmt::format(".{}.", path.filename().string());
}

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path) {
  throw FileError(fmt::format("{} {}: {}", what, path.string(), std::strerror(errno)));
}

void write_all(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      fail("cannot write", path);
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void fsync_directory(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) fail("cannot sync directory", directory);
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) fail("cannot open", path);
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) fail("cannot read", path);
  if (S_ISDIR(status.st_mode))
    throw FileError(fmt::format("cannot read {}: it is a directory", path.string()));
  std::string content;
  content.reserve(static_cast<size_t>(status.st_size));
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0) {
      if (errno == EINTR) continue;
      fail("cannot read", path);
    }
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
  }
}

std::string read_text_file(const std::filesystem::path& path) {
  std::string content = read_file(path);
  content.erase(0, content.size() - skip_byte_order_mark(content).size());
  return content;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  write_file_atomically(path, [&](const auto& append) { append(content); });
}

void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(const std::function<void(std::string_view)>&)>& produce) {
  const auto directory = directory_of(path);
  // Not mkostemp(), whose files have mode 0600: to ask for the umask is to change it, for all threads.
  std::string temporary;
  UniqueFd fd;
  std::random_device random;
  for (int attempt = 0; attempt < 100 && !fd.valid(); ++attempt) {
    temporary = (directory / temporary_prefix(path)).string();
    for (size_t i = 0; i < kRandomLength; ++i)
      temporary += kRandomCharacters[random() % kRandomCharacters.size()];
    fd.reset(::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.valid() && errno != EEXIST) break;
  }
  if (!fd.valid()) fail("cannot create a temporary file to replace", path);
  try {
    produce([&](std::string_view bytes) { write_all(fd.get(), bytes, path); });
    if (::fsync(fd.get()) != 0) fail("cannot write", path);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail("cannot replace", path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  fsync_directory(directory);
}

void remove_unfinished(const std::filesystem::path& path) {
  const std::string prefix = temporary_prefix(path);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory_of(path), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.size() != prefix.size() + kRandomLength || !name.starts_with(prefix)) continue;
    if (name.find_first_not_of(kRandomCharacters, prefix.size()) == std::string::npos)
      ::unlink(entry->path().c_str());
  }
}

}  // namespace lockstep
