#include "bench/network/machine_job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "lockstep/base/clock.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/shell.h"
#include "lockstep/job/child_process.h"
#include "tools/programs.h"

namespace lockstep::bench {
namespace {

/// lockrun gives its ranks 30 s to end.
constexpr double kLongestEnd = 60;  // seconds

/// A job that has ended keeps its port for a while.
int next_port() {
  constexpr int kFirstPort = 20000, kPorts = 10000;
  static int jobs = 0;
  return kFirstPort + jobs++ % kPorts;
}

}  // namespace

MachineJob::MachineJob(const Network& network, const std::vector<int>& layout,
                       const MachineProgram& program) {
  const int port = next_port();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("pipe: {}", std::strerror(errno)));
  output_.reset(ends[0]);
  said_.reset(::memfd_create("lockstep-bench", MFD_CLOEXEC));
  const UniqueFd to(ends[1]);
  for (size_t m = 0; m < layout.size(); ++m) {
    const std::string command = fmt::format(
        "env LOCKSTEP_UPLINK={} {}=cable0 {} --nnodes {} --node-rank {} --nproc-per-node {} --master-addr {} "
        "--master-port {} --prefix off {}",
        program.uplink.empty() ? "gloo" : program.uplink, env::kGlooInterface,
        shell_quoted(tools::program_path("lockrun").string()), layout.size(), m, layout[m],
        Network::address(0), port, program.program);
    start(network.on(static_cast<int>(m), command), m == 0 ? to.get() : -1);
  }
}

MachineJob::~MachineJob() {
  for (const pid_t process : processes_) ::kill(process, SIGTERM);
  wait(monotonic_seconds() + kLongestEnd);
}

std::string MachineJob::finish(const std::string& name, const std::function<void()>& look) {
  constexpr double kLongestJob = 600;  // seconds
  constexpr int kBetweenLooks = 200;   // milliseconds
  const double end = monotonic_seconds() + kLongestJob;
  std::string text;
  char buffer[4096];
  while (true) {
    if (look) look();
    pollfd poll{output_.get(), POLLIN, 0};
    if (::poll(&poll, 1, kBetweenLooks) > 0) {
      const ssize_t got = ::read(output_.get(), buffer, sizeof buffer);
      if (got == 0 || (got < 0 && errno != EINTR)) break;
      if (got > 0) text.append(buffer, static_cast<size_t>(got));
    }
    if (monotonic_seconds() >= end) {
      throw Error(fmt::format("benchmark: {}: a job has not ended within {:g} s", name, kLongestJob));
    }
  }
  if (!wait(std::max(end, monotonic_seconds() + kLongestEnd)))
    throw Error(fmt::format("benchmark: {}: a rank has failed:\n{}", name, read_what_was_said()));
  return text;
}

void MachineJob::start(const std::string& command, int stdout_fd) {
  const pid_t process = job::fork_helper("lockstep-launch");
  if (process == 0) {
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    const int nothing = ::open("/dev/null", O_RDWR);
    if (nothing < 0) ::_exit(127);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(stdout_fd >= 0 ? stdout_fd : nothing, STDOUT_FILENO);
    if (said_.valid()) ::dup2(said_.get(), STDERR_FILENO);  // shown if it fails
    ::execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  processes_.push_back(process);
}

bool MachineJob::wait(double end) {
  constexpr timespec kBetweenLooks{0, 5'000'000};
  bool is_well = true;
  for (const pid_t process : processes_) {
    int status = 0;
    pid_t ended = 0;
    while ((ended = ::waitpid(process, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
      if (monotonic_seconds() >= end) ::kill(process, SIGKILL);
      ::nanosleep(&kBetweenLooks, nullptr);
    }
    is_well = is_well && status == 0;
  }
  processes_.clear();
  return is_well;
}

std::string MachineJob::read_what_was_said() const {
  std::string text(size_t{16} << 10, ' ');
  const ssize_t got = ::pread(said_.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

}  // namespace lockstep::bench
