#include "launcher/process/scratch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <filesystem>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "lockrun_";
constexpr size_t kIdLength = 36;  ///< of a random identifier
/// A directory is made before it is locked.
constexpr double kYoungest = 60;

/// Whether `path` is a scratch directory of this user whose guardian is dead.
bool is_left(const fs::path& path) {
  const std::string name = path.filename();
  struct stat status {};
  if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kIdLength) return false;
  if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::getuid() ||
      wall_seconds() - static_cast<double>(status.st_mtime) < kYoungest) {
    return false;
  }
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  return fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

void kill_ranks_of(const fs::path& scratch) {
  const std::string mark = std::string(env::kErrorFile) + "=" + scratch.string() + "/";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ptr != name.data() + name.size())
      continue;
    try {
      if (read_file((entry.path() / "environ").string()).find(mark) != std::string::npos)
        ::kill(pid, SIGKILL);
    } catch (const Error&) {
      // Of another user, or gone.
    }
  }
}

}  // namespace

std::string scratch_name(const std::string& parent, const std::string& id) {
  return (fs::path(parent) / (std::string(kPrefix) + id)).string();
}

UniqueFd make_scratch(const std::string& path) {
  UniqueFd fd;
  if (::mkdir(path.c_str(), 0700) != 0) return fd;
  fd.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) ::flock(fd.get(), LOCK_SH | LOCK_NB);
  return fd;
}

void sweep_scratch(const std::string& parent) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (!is_left(entry.path())) continue;
    kill_ranks_of(entry.path());
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace lockstep::launcher
