#include "lockstep/comm/shm/process.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace lockstep::shm {

bool process_ended(UniqueFd& pidfd, int pid) {
  if (pid == ::getpid()) return false;
  if (!pidfd.valid()) {
    pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!pidfd.valid()) return errno == ESRCH;
  }
  pollfd event{pidfd.get(), POLLIN, 0};
  return ::poll(&event, 1, 0) > 0;
}

}  // namespace lockstep::shm
