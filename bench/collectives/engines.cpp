#include "bench/collectives/engines.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kStartTimeout{60};
constexpr std::chrono::seconds kAnswerTimeout{120};
constexpr std::chrono::seconds kEndTimeout{10};

constexpr size_t kStartLineBytes = 4096;

bool is_readable(int fd, std::chrono::milliseconds timeout) {
  pollfd event{fd, POLLIN, 0};
  return ::poll(&event, 1, static_cast<int>(timeout.count())) > 0;
}

pid_t start_process(const std::vector<std::string>& command, const std::string& socket_name) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(fmt::format("benchmark: cannot start a process: {}", std::strerror(errno)));
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  env::set(kSocketVariable, socket_name);
  // Standard output carries the benchmark's table or JSON and nothing else.
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::execvp(arguments[0], arguments.data());
  std::fprintf(stderr, "lockstep bench: cannot execute %s: %s\n", arguments[0], std::strerror(errno));
  ::_exit(127);
}

void end_process(pid_t pid) {
  const auto deadline = Clock::now() + kEndTimeout;
  while (::waitpid(pid, nullptr, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Engines::~Engines() {
  // Ranks end when the benchmark hangs up.
  for (Running& engine : engines_) engine.ranks.clear();
  listener_.fd.reset();
  for (const Running& engine : engines_) {
    for (const pid_t pid : engine.processes) end_process(pid);
  }
}

void Engines::add(std::string name, int ranks, std::vector<pid_t> processes, bool bind) {
  Running engine;
  engine.name = std::move(name);
  engine.bind = bind;
  engine.processes = std::move(processes);
  engine.ranks.resize(static_cast<size_t>(ranks));
  engine.start_line.reset(::memfd_create("lockstep-bench", MFD_CLOEXEC));
  if (!engine.start_line.valid() ||
      ::ftruncate(engine.start_line.get(), static_cast<off_t>(kStartLineBytes)) != 0) {
    throw Error(fmt::format("benchmark: cannot make shared memory: {}", std::strerror(errno)));
  }
  engines_.push_back(std::move(engine));
}

void Engines::add(std::string name, int ranks, const std::vector<std::string>& command, bool bind) {
  add(std::move(name), ranks, std::vector<pid_t>{start_process(command, socket_name())}, bind);
}

void Engines::wait_for_ranks() {
  const auto deadline = Clock::now() + kStartTimeout;
  while (true) {
    const auto incomplete = std::find_if(engines_.begin(), engines_.end(), [](const Running& engine) {
      return std::any_of(engine.ranks.begin(), engine.ranks.end(),
                         [](const auto& fd) { return !fd.valid(); });
    });
    if (incomplete == engines_.end()) return;
    if (is_readable(listener_.fd.get(), std::chrono::milliseconds(50))) {
      accept_rank();
      continue;
    }
    check_processes();
    if (Clock::now() > deadline) {
      throw Error(fmt::format("benchmark: the ranks of {} did not start within {} s", incomplete->name,
                              kStartTimeout.count()));
    }
  }
}

void Engines::accept_rank() {
  UniqueFd fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd.valid()) return;
  Hello hello{};
  receive_bytes(fd.get(), &hello, sizeof hello);
  Running& engine = engines_.at(hello.engine);
  const int ranks = static_cast<int>(engine.ranks.size());
  const bool crowded = ranks > cores_;
  const Welcome welcome{ranks, crowded ? 1U : 0U, engine.bind && !crowded ? hello.rank : -1};
  send_bytes(fd.get(), &welcome, sizeof welcome);
  send_descriptor(fd.get(), engine.start_line.get());
  engine.ranks.at(static_cast<size_t>(hello.rank)) = std::move(fd);
}

void Engines::check_processes() const {
  for (const Running& engine : engines_) {
    for (const pid_t pid : engine.processes) {
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == pid) {
        throw Error(fmt::format("benchmark: {} ended before it could be measured; its message stands above",
                                engine.name));
      }
    }
  }
}

Block Engines::measure(uint32_t number, const Command& command) {
  Running& engine = engines_.at(number);
  for (const UniqueFd& rank : engine.ranks) send_bytes(rank.get(), &command, sizeof command);
  Block block;
  for (const UniqueFd& rank : engine.ranks) {
    if (!is_readable(rank.get(), kAnswerTimeout)) {
      throw Error(fmt::format("benchmark: {} has not ended its calls within {} s", engine.name,
                              kAnswerTimeout.count()));
    }
    const Answer answer = receive_answer(rank.get());
    if (!answer.error.empty()) block.error = answer.error;
    block.seconds.resize(std::max(block.seconds.size(), answer.seconds.size()));
    block.means.resize(block.seconds.size());
    for (size_t i = 0; i < answer.seconds.size(); ++i) {
      block.seconds[i] = std::max(block.seconds[i], answer.seconds[i]);
      block.means[i] += answer.seconds[i] / static_cast<double>(engine.ranks.size());
    }
  }
  return block;
}

}  // namespace lockstep::bench
