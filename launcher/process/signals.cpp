#include "launcher/process/signals.h"

#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

bool holds(const std::vector<int>& signals, int signal) {
  return std::find(signals.begin(), signals.end(), signal) != signals.end();
}

}  // namespace

SignalAction action_of(int signal, const std::vector<int>& ending, bool ranks_are_ending,
                       const std::vector<int>& earlier) {
  if (!holds(ending, signal)) return signal == SIGTSTP ? SignalAction::suspend : SignalAction::pass_on;
  if (!ranks_are_ending) return SignalAction::end;
  return signal == SIGINT && holds(earlier, SIGINT) ? SignalAction::kill : SignalAction::note;
}

void take_signals_back() {
  for (const int signal : {SIGCHLD, SIGTERM, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

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
  is_from_terminal_ = info.ssi_code == SI_KERNEL;
  return static_cast<int>(info.ssi_signo);
}

void Signals::suspend() {
  if (!is_from_terminal_) {
    ::raise(SIGSTOP);
    return;
  }
  // The kernel ignores SIGTSTP where nobody could continue the process: under `ssh -t` without a shell, for example.
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

int exit_code(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace lockstep::launcher
