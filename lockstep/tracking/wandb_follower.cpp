#include "lockstep/tracking/wandb_follower.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/tracking/tracker.h"
#include "lockstep/tracking/wandb_follower_script.h"

namespace lockstep::detail {
namespace {

constexpr int kWordsFd = 3;       // STATUS_FD of wandb_follower.py
constexpr int kFirstOfOurs = 10;  // above what the child's files are numbered

constexpr const char* kInstall =
    "; install it there (python3 -m pip install wandb), activate the environment that has it or name its Python "
    "in PYTHON_EXEC, or leave the tracker wandb out";

/// `fd` under a number that is none of the child's. Throws Error.
UniqueFd out_of_the_way(UniqueFd fd) {
  if (fd.valid() && fd.get() < kFirstOfOurs) fd.reset(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstOfOurs));
  if (!fd.valid()) throw Error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  return fd;
}

struct Pipe {
  UniqueFd read_end, write_end;
};

Pipe make_pipe() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  UniqueFd first(ends[0]), second(ends[1]);
  return {out_of_the_way(std::move(first)), out_of_the_way(std::move(second))};
}

/// What posix_spawnp() is told: the child's files and its signals, which are not this process's.
class SpawnPlan {
 public:
  SpawnPlan() {
    ::posix_spawn_file_actions_init(&files_);
    ::posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setflags(&attributes_,
                               POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  void connect(const UniqueFd& ours, int theirs) {
    ::posix_spawn_file_actions_adddup2(&files_, ours.get(), theirs);
  }
  /// An errno, or 0.
  int spawn(const std::string& program, std::vector<std::string> arguments, pid_t* pid) {
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    return ::posix_spawnp(pid, program.c_str(), &files_, &attributes_, pointers.data(), environ);
  }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

int milliseconds_until(double deadline) {
  return static_cast<int>(std::ceil(std::max(0.0, deadline - monotonic_seconds()) * 1000));
}

std::string seconds_text(double seconds) { return fmt::format("{} s", std::lround(seconds)); }

}  // namespace

std::string_view wandb_follower_script() { return kWandbFollowerScript; }

std::string follower_python() { return env::get(env::kPythonExec).value_or("python3"); }

WandbFollower::WandbFollower(Options options) : options_(std::move(options)) {
  spawn();
  wait_until_ready();
}

void WandbFollower::spawn() {
  Pipe input = make_pipe(), words = make_pipe();
  UniqueFd log(::open(options_.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!log.valid())
    throw FileError(fmt::format("cannot open {}: {}", options_.log.string(), std::strerror(errno)));
  log = out_of_the_way(std::move(log));
  SpawnPlan plan;
  plan.connect(input.read_end, STDIN_FILENO);
  plan.connect(log, STDOUT_FILENO);
  plan.connect(log, STDERR_FILENO);
  plan.connect(words.write_end, kWordsFd);
  const std::string python = follower_python();
  const int error =
      plan.spawn(python,
                 {python, options_.script.string(), options_.lines.string(), "--parent",
                  std::to_string(::getpid()), "--end-seconds", std::to_string(options_.end_seconds)},
                 &pid_);
  if (error != 0) {
    throw NotInstalledError(
        fmt::format("the tracker wandb needs Python 3 with the package wandb, and {} cannot be started: {}{}",
                    python, std::strerror(error), kInstall));
  }
  input_ = std::move(input.write_end);
  words_ = std::move(words.read_end);
  ::fcntl(words_.get(), F_SETFL, O_NONBLOCK);
}

void WandbFollower::wait_until_ready() {
  const double deadline = monotonic_seconds() + options_.start_seconds;
  while (!is_ready_ && missing_.empty() && !has_ended_) {
    if (wait_for_words(deadline)) continue;
    kill();
    throw Error(fmt::format("{} has not imported wandb within {}", follower_python(),
                            seconds_text(options_.start_seconds)));
  }
  if (is_ready_) return;
  const std::string cause =
      missing_.empty() ? fmt::format("{} {}", follower_python(), how_it_ended()) : missing_;
  kill();
  throw NotInstalledError(
      fmt::format("the tracker wandb needs Python 3 with the package wandb, and {}{}", cause, kInstall));
}

// False after the deadline.
bool WandbFollower::wait_for_words(double deadline) {
  pollfd entry{words_.get(), POLLIN, 0};
  const int ready = ::poll(&entry, 1, milliseconds_until(deadline));
  if (ready > 0) read_words();
  return ready > 0 || (ready < 0 && errno == EINTR) || monotonic_seconds() < deadline;
}

void WandbFollower::read_words() {
  std::array<char, 4096> bytes;
  while (!has_ended_) {
    const ssize_t count = ::read(words_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) break;
    if (count <= 0) has_ended_ = true;
    if (count > 0) unread_.append(bytes.data(), static_cast<size_t>(count));
  }
  size_t begin = 0;
  for (size_t end = 0; (end = unread_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    take_line(std::string_view(unread_).substr(begin, end - begin));
  }
  unread_.erase(0, begin);
}

void WandbFollower::take_line(std::string_view line) {
  const nlohmann::json said = parse_json(line);
  if (!said.is_object()) return;
  for (const auto& [kind, value] : said.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : dump_json(value);
    if (kind == "ready") {
      is_ready_ = true;
    } else if (kind == "missing") {
      missing_ = text;
    } else if (kind == "problem") {
      problem_ = text;
    } else if (kind == "note") {
      log::warning(text);
    } else {
      log::info(fmt::format("Weights & Biases: {}", text));
    }
  }
}

// After the end of its words, which close with the process: the wait is short, and whoever takes longer is killed.
std::string WandbFollower::how_it_ended() {
  int status = 0;
  pid_t waited = 0;
  const double deadline = monotonic_seconds() + 1;
  while (pid_ > 0 && (waited = ::waitpid(pid_, &status, WNOHANG)) == 0) {
    if (monotonic_seconds() > deadline) ::kill(-pid_, SIGKILL);
    if (monotonic_seconds() > deadline + 1) break;  // the system does not let it go
    ::usleep(1000);
  }
  pid_ = -1;
  if (waited <= 0) return "has ended";
  if (WIFSIGNALED(status)) return fmt::format("was ended by signal {}", WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return {};
  return fmt::format("ended with exit code {} ({})", WEXITSTATUS(status), options_.log.string());
}

std::optional<std::string> WandbFollower::problem() {
  read_words();
  if (!problem_.empty()) {
    kill();
    return problem_;
  }
  if (!has_ended_) return std::nullopt;
  const std::string end = how_it_ended();
  return fmt::format("its client {}", end.empty() ? "has ended" : end);
}

std::optional<std::string> WandbFollower::finish() {
  input_.reset();
  const double deadline = monotonic_seconds() + options_.end_seconds;
  while (!has_ended_) {
    if (wait_for_words(deadline)) continue;
    kill();
    return fmt::format("its client has not sent all within {} after the end",
                       seconds_text(options_.end_seconds));
  }
  const std::string end = how_it_ended();
  if (!problem_.empty()) return problem_;
  if (!end.empty()) return fmt::format("its client {}", end);
  return std::nullopt;
}

void WandbFollower::kill() {
  if (pid_ > 0)
    ::kill(-pid_, SIGKILL);  // the client's own service, in a session of its own, ends when it notices
  how_it_ended();
}

}  // namespace lockstep::detail
