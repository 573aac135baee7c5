#include "launcher/process/scratch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <string_view>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "lockrun_";
constexpr size_t kIdLength = 36;  ///< of a random identifier
/// A directory has this at the end of its name until it is locked.
constexpr std::string_view kNew = ".new";
constexpr double kOldestNew = 60;  ///< seconds; whoever made one that is older was killed

/// Whether `path` is a scratch directory of this user whose guardian is dead.
bool is_left(const fs::path& path) {
  const std::string name = path.filename();
  struct stat status {};
  const bool is_new = name.ends_with(kNew);
  if (!name.starts_with(kPrefix) || name.size() != kPrefix.size() + kIdLength + (is_new ? kNew.size() : 0))
    return false;
  if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::getuid() ||
      (is_new && wall_seconds() - static_cast<double>(status.st_mtime) < kOldestNew)) {
    return false;
  }
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  return fd.valid() && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
}

void kill_ranks_of(const fs::path& scratch) {
  const std::string mark = scratch_mark(scratch.string());
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
      // The process belongs to another user, or is gone.
    }
  }
}

}  // namespace

std::string scratch_name(const std::string& parent, const std::string& id) {
  return (fs::path(parent) / (std::string(kPrefix) + id)).string();
}

std::string scratch_mark(const std::string& path) { return "LOCKRUN_SCRATCH=" + path; }

UniqueFd make_scratch(const std::string& path) {
  UniqueFd fd;
  const std::string fresh = path + std::string(kNew);
  if (::mkdir(fresh.c_str(), 0700) != 0) return fd;
  fd.reset(::open(fresh.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.valid()) ::flock(fd.get(), LOCK_SH | LOCK_NB);
  if (fd.valid() && ::rename(fresh.c_str(), path.c_str()) == 0) return fd;
  const int error = errno;
  ::rmdir(fresh.c_str());
  fd.reset();
  errno = error;
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
