#include "lockstep/job/child_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::job {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// Parent of `pid`, or -1 when it is gone.
pid_t read_parent(pid_t pid) {
  const UniqueFd fd(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t size = fd.valid() ? ::read(fd.get(), text, sizeof text - 1) : -1;
  if (size <= 0) return -1;
  text[size] = '\0';
  // The name in parentheses may hold anything, so look from its end: ") S 123 ...".
  const char* name_end = std::strrchr(text, ')');
  int parent = -1;
  if (name_end == nullptr || std::sscanf(name_end + 1, " %*c %d", &parent) != 1) return -1;
  return parent;
}

/// fork(), with the child in the control group `cgroup_fd` from its start: moving it there later takes the
/// kernel 10 ms. Where that is refused the child is in its parent's group. For processes with a single
/// thread.
pid_t fork_into(int cgroup_fd) {
  if (cgroup_fd >= 0) {
    clone_args arguments{};
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = SIGCHLD;
    arguments.cgroup = static_cast<uint64_t>(cgroup_fd);
    const long pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid >= 0) return static_cast<pid_t>(pid);
  }
  return ::fork();
}

void die_with_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have died before the request was in place.
  if (::getppid() != parent) ::_exit(127);
}

bool connect(int fd, int standard) { return fd < 0 || ::dup2(fd, standard) == standard; }

void reset_signals(const sigset_t& mask) {
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

}  // namespace

StartedProcess start_process(const ProcessSpec& spec, const sigset_t& mask) {
  const std::vector<char*> argv = pointers(spec.argv);
  const std::vector<char*> environment = pointers(spec.environment);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {-1, errno, false};
  UniqueFd status_read(ends[0]), status_write(ends[1]);

  const pid_t parent = ::getpid();
  const pid_t pid = fork_into(spec.cgroup_fd);
  if (pid < 0) return {-1, errno, false};
  if (pid == 0) {
    // In a process with threads only calls that are safe in a signal handler are allowed from here on.
    die_with_parent(parent);
    if (spec.group == Group::own_session) ::setsid();
    if (spec.group == Group::own) ::setpgid(0, 0);
    const bool connected =
        connect(spec.stdin_fd, 0) && connect(spec.stdout_fd, 1) && connect(spec.stderr_fd, 2);
    for (const int fd : spec.inherited_fds) ::fcntl(fd, F_SETFD, 0);
    if (!spec.cores.empty()) {
      cpu_set_t cores;
      CPU_ZERO(&cores);
      for (const int core : spec.cores) CPU_SET(core, &cores);
      ::sched_setaffinity(0, sizeof cores, &cores);
    }
    reset_signals(mask);
    if (connected) ::execve(spec.path.c_str(), argv.data(), environment.data());
    const int error = errno;
    if (::write(status_write.get(), &error, sizeof error) < 0) ::_exit(126);
    ::_exit(127);
  }
  status_write.reset();
  int error = 0;
  ssize_t size = 0;
  do {
    size = ::read(status_read.get(), &error, sizeof error);
  } while (size < 0 && errno == EINTR);
  if (size == sizeof error) {
    ::waitpid(pid, nullptr, 0);
    return {-1, error};
  }
  return {pid, 0};
}

pid_t fork_helper(const char* name) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(fmt::format("cannot fork: {}", std::strerror(errno)));
  if (pid == 0) {
    die_with_parent(parent);
    ::prctl(PR_SET_NAME, name);
  }
  return pid;
}

UniqueFd open_pidfd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

std::vector<pid_t> children() {
  std::vector<pid_t> result;
  // Looking through /proc takes a while on a large machine; most often there is nobody to look for.
  siginfo_t info{};
  if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return result;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  if (!proc) return result;
  const pid_t self = ::getpid();
  while (const dirent* entry = ::readdir(proc.get())) {
    const char* end = entry->d_name + std::strlen(entry->d_name);
    pid_t pid = 0;
    if (std::from_chars(entry->d_name, end, pid).ptr != end) continue;
    if (read_parent(pid) == self) result.push_back(pid);
  }
  return result;
}

int kill_descendants(const std::vector<pid_t>& spared, double timeout_seconds) {
  // Only own children are killed, never a process further down: a child's number cannot be given to another
  // process before it is reaped here. The killed ones' children become ours, so a few rounds end them all.
  const double deadline = monotonic_seconds() + timeout_seconds;
  std::set<pid_t> killed;
  while (true) {
    std::vector<pid_t> left = children();
    std::erase_if(left,
                  [&](pid_t pid) { return std::find(spared.begin(), spared.end(), pid) != spared.end(); });
    if (left.empty() || monotonic_seconds() > deadline) return static_cast<int>(killed.size());
    for (const pid_t pid : left) {
      siginfo_t info{};
      ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
      if (info.si_pid == 0 && ::kill(pid, SIGKILL) == 0) killed.insert(pid);
    }
    ::usleep(1000);
    for (const pid_t pid : left) ::waitpid(pid, nullptr, WNOHANG);
  }
}

}  // namespace lockstep::job
