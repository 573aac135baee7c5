#include "launcher/process/limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "launcher/process/cgroup_files.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {

void raise_open_files() {
  constexpr rlim_t kMost = 65536;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  const rlim_t wanted = std::min(files.rlim_max, std::max(files.rlim_cur, kMost));
  if (wanted <= files.rlim_cur) return;
  files.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

std::string describe_fork_failure(int error) {
  std::string text = fmt::format("cannot make a process (fork): {}", std::strerror(error));
  if (error != EAGAIN) return text;
  for (const std::string& directory : cgroup_directories("", "pids")) {
    const auto most = read_cgroup_number(directory + "/pids.max"),
               now = read_cgroup_number(directory + "/pids.current");
    if (most && now && *now >= *most)
      return fmt::format("{}; the control group {} has the {} processes that it may have (pids.max)", text,
                         directory, *most);
  }
  rlimit processes{};
  if (::getrlimit(RLIMIT_NPROC, &processes) == 0 && processes.rlim_cur != RLIM_INFINITY) {
    return fmt::format(
        "{}; user {} may have {} processes and threads (ulimit -u): raise it, or start fewer ranks", text,
        ::getuid(), processes.rlim_cur);
  }
  return text + "; a limit of processes is reached (ulimit -u, pids.max of a control group, kernel.pid_max)";
}

void check_proc() {
  std::error_code error;
  if (std::filesystem::exists("/proc/self/exe", error)) return;
  throw Error(
      "there is no /proc here, in which lockrun finds its own programs and watches the ranks: mount it (mount -t proc proc "
      "/proc)");
}

}  // namespace lockstep::launcher
