#include "launcher/process/first_process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "launcher/process/signals.h"

namespace lockstep::launcher {
namespace {

/// Reaps whatever has ended; ends this process when `child` has.
void reap(pid_t child) {
  int status = 0;
  pid_t ended = 0;
  while ((ended = ::waitpid(-1, &status, WNOHANG)) > 0) {
    if (ended == child) ::_exit(exit_code(status));
  }
}

}  // namespace

void leave_process_1_to_a_parent() {
  if (::getpid() != 1) return;
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);
  const pid_t child = ::fork();
  if (child <= 0) {
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return;
  }
  while (true) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&all, &info);
    if (signal == SIGCHLD) {
      reap(child);
    } else if (signal > 0 && info.si_code != SI_KERNEL) {
      ::kill(child, signal);  // what a terminal sends reaches the child by itself
    }
  }
}

}  // namespace lockstep::launcher
