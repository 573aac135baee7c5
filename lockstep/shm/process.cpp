#include "lockstep/shm/process.h"

#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/error.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace lockstep::shm {

namespace {

/// For where no descriptor is left, or a sandbox forbids pidfd_open(): what has ended, a zombie too, has no program any
/// more. False where /proc does not tell.
bool has_no_program(int pid) {
  char first = 0;
  const std::string program = fmt::format("/proc/{}/exe", pid);
  return ::readlink(program.c_str(), &first, 1) < 0 && errno == ENOENT &&
         ::readlink("/proc/self/exe", &first, 1) > 0;
}

}  // namespace

bool process_ended(UniqueFd& pidfd, int pid) {
  if (pid == ::getpid()) return false;
  if (!pidfd.valid()) {
    pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd.valid()) return errno == ESRCH || has_no_program(pid);
  }
  pollfd event{pidfd.get(), POLLIN, 0};
  return ::poll(&event, 1, 0) > 0;
}

size_t count_threads() {
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/self/task", error);
  return error ? 0 : static_cast<size_t>(std::distance(threads, {}));
}

uint64_t pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

RankProcess::RankProcess() : pid_(::getpid()) {
  static const bool counts =
      ::pthread_atfork(nullptr, nullptr, [] { forks_.fetch_add(1, std::memory_order_relaxed); }) == 0;
  (void)counts;
  at_creation_ = forks_.load(std::memory_order_relaxed);
}

void RankProcess::refuse(int rank) const {
  throw ValueError(
      fmt::format("process {} was forked from rank {} (pid {}) after it had joined the job and is no rank "
                  "itself: leave collectives to that process",
                  ::getpid(), rank, pid_));
}

}  // namespace lockstep::shm
