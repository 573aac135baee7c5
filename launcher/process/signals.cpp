#include "launcher/process/signals.h"

#include <sys/signalfd.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::launcher {
namespace {

/// The parent of a process; 0: it has none here.
pid_t parent_of(pid_t pid) {
  constexpr std::string_view kField = "\nPPid:\t";
  try {
    const std::string status = read_file(fmt::format("/proc/{}/status", pid));
    const size_t at = status.find(kField);
    return at == status.npos ? 0 : static_cast<pid_t>(std::strtol(&status[at + kField.size()], nullptr, 10));
  } catch (const FileError&) {
    return 0;
  }
}

/// An orphaned process group (POSIX): no process of its session that is in another group has started it. Ctrl-Z does not stop
/// such programs, since there is no shell that could continue them: under `ssh -t HOST PROGRAM` or `docker run -it`.
bool nobody_could_continue() {
  const pid_t group = ::getpgrp();
  pid_t parent = ::getppid();
  while (parent > 0 && ::getpgid(parent) == group) parent = parent_of(parent);
  return parent <= 0 || ::getsid(parent) != ::getsid(0);
}

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
  while (::read(fd_.get(), &info, sizeof info) == sizeof info) {
    const auto signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGTSTP && info.ssi_code == SI_KERNEL && nobody_could_continue()) continue;
    return signal;
  }
  return std::nullopt;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

int exit_code(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

}  // namespace lockstep::launcher
