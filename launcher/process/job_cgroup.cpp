#include "launcher/process/job_cgroup.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

constexpr double kRemoveTimeout = 1;
constexpr std::string_view kName = "lockrun-";  ///< followed by lockrun's pid

/// Directory of this process's own group in the file system of cgroup v2; empty when there is none.
std::string own_directory() {
  std::string own;
  std::istringstream groups(read_file("/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::")) own = line.substr(3);
  }
  std::istringstream mounts(read_file("/proc/self/mountinfo"));
  for (std::string line; std::getline(mounts, line) && !own.empty();) {
    if (line.find(" - cgroup2 ") == line.npos) continue;
    std::istringstream fields(line);
    std::string number, parent, device, root, mount_point;
    fields >> number >> parent >> device >> root >> mount_point;
    if (root == "/") return mount_point + (own == "/" ? "" : own);
    if (own.starts_with(root)) return mount_point + own.substr(root.size());
  }
  return {};
}

/// Removes an empty group and those below it, which other launchers that ran in it may have left. False when
/// some process is in one of them.
bool remove_group(const fs::path& path) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.is_directory(error) && !remove_group(entry.path())) return false;
  }
  return ::rmdir(path.c_str()) == 0 || errno == ENOENT;
}

void kill_group(const std::string& path) {
  const UniqueFd fd(::open((path + "/cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  // Where it cannot be written, the processes are killed one by one as everywhere.
  if (fd.valid() && ::write(fd.get(), "1", 1) < 0) return;
}

/// Removes a group, and kills what is still in it; waits a second at most.
void end_group(const std::string& path) {
  const double deadline = monotonic_seconds() + kRemoveTimeout;
  while (!remove_group(path) && monotonic_seconds() < deadline) {
    kill_group(path);
    ::usleep(1000);
  }
}

/// Where lockrun and its guardian were both killed their group is left, and what they had started in it. A
/// lockrun holds a lock on its group, since its number may mean another process in another container.
void end_groups_of_the_dead(const fs::path& own) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(own, error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    if (!name.starts_with(kName)) continue;
    std::from_chars(name.data() + kName.size(), name.data() + name.size(), pid);
    if (pid <= 0 || ::kill(pid, 0) == 0 || errno != ESRCH) continue;
    const UniqueFd group(::open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (group.valid() && ::flock(group.get(), LOCK_EX | LOCK_NB) == 0) end_group(entry.path());
  }
}

}  // namespace

std::unique_ptr<JobCgroup> JobCgroup::make() {
  std::string path;
  try {
    path = own_directory();
  } catch (const FileError&) {
    return nullptr;
  }
  if (path.empty() || ::access(path.c_str(), W_OK) != 0) return nullptr;
  end_groups_of_the_dead(path);
  path += fmt::format("/{}{}", kName, ::getpid());
  if (::mkdir(path.c_str(), 0755) != 0) return nullptr;
  UniqueFd directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || ::access((path + "/cgroup.kill").c_str(), W_OK) != 0) {
    ::rmdir(path.c_str());
    return nullptr;
  }
  ::flock(directory.get(), LOCK_SH | LOCK_NB);  // as long as lockrun or its guardian lives
  return std::unique_ptr<JobCgroup>(new JobCgroup(std::move(path), std::move(directory)));
}

void JobCgroup::kill() const { kill_group(path_); }

void JobCgroup::end() const { end_group(path_); }

}  // namespace lockstep::launcher
