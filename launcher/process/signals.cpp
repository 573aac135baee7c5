#include "launcher/process/signals.h"

#include <sys/signalfd.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

Signals::Signals(const std::vector<int>& ending) {
  sigset_t handled;
  ::sigemptyset(&handled);
  std::vector<int> all = ending;
  all.insert(all.end(), {SIGUSR1, SIGUSR2, SIGTSTP});
  for (const int signal : all) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) ::sigaddset(&handled, signal);
  }
  // A closed standard output is an error of write(), not the end of the job.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // so is a file that must not grow
  ::sigprocmask(SIG_BLOCK, &handled, &original_);
  fd_.reset(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.valid()) throw Error("cannot receive signals (signalfd)");
}

std::optional<int> Signals::receive() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace lockstep::launcher
