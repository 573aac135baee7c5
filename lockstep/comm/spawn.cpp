#include "lockstep/comm/spawn.h"

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
#include <map>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "lockstep/base/cores.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/json.h"
#include "lockstep/base/main.h"
#include "lockstep/job/child_process.h"
#include "lockstep/job/launch_environment.h"
#include "lockstep/job/listener.h"
#include "lockstep/shm/segment.h"
#include "lockstep/timeline/parts_folder.h"

namespace lockstep {

// Not in the nameless namespace, since SpawnContext::State holds them.
namespace spawn_detail {
struct Child {
  int rank = 0;
  pid_t pid = -1;
  UniqueFd pidfd, error;
  bool ended = false;
  int status = 0;
  bool status_is_lost = false;  // something else in this program waited for it
};
}  // namespace spawn_detail

namespace {

using spawn_detail::Child;

using nlohmann::json;
using SpawnClock = std::chrono::steady_clock;

constexpr const char* kTaskVariable = "LOCKSTEP_SPAWN_TASK";    // descriptor: which function, with what
constexpr const char* kErrorVariable = "LOCKSTEP_SPAWN_ERROR";  // descriptor: takes the message of a failure

constexpr size_t kStampDigits = 20;

std::map<std::string, SpawnFunction>& spawnables() {
  static std::map<std::string, SpawnFunction> map;
  return map;
}

[[noreturn]] void fail_errno(const std::string& what) {
  throw Error(fmt::format("spawn: {}: {}", what, std::strerror(errno)));
}

/// An unnamed file that the children read, each from its start.
UniqueFd write_memory_file(const std::string& content) {
  UniqueFd fd(::memfd_create("lockstep-spawn", MFD_CLOEXEC));
  if (!fd.valid() ||
      ::pwrite(fd.get(), content.data(), content.size(), 0) != static_cast<ssize_t>(content.size())) {
    fail_errno("cannot pass the arguments on");
  }
  return fd;
}

std::string read_all(int fd) {
  std::string content;
  char buffer[4096];
  while (true) {
    const ssize_t size = ::pread(fd, buffer, sizeof buffer, static_cast<off_t>(content.size()));
    if (size <= 0) return content;
    content.append(buffer, static_cast<size_t>(size));
  }
}

/// A store for programs that want one, on this machine's own address only.
c10::intrusive_ptr<c10d::TCPStore> serve_store() {
  job::Listener listener = job::listen_on_loopback(0);
  c10d::TCPStoreOptions options;
  options.port = listener.port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener.fd.release();
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

/// How a rank ended is told once, to whoever asks first.
void check_ends_are_told() {
  struct sigaction action {};
  ::sigaction(SIGCHLD, nullptr, &action);
  if (action.sa_handler == SIG_IGN || (action.sa_flags & SA_NOCLDWAIT) != 0) {
    throw Error(
        "spawn: this program ignores SIGCHLD, so the kernel does not tell how a rank ended: set its action "
        "to "
        "SIG_DFL first");
  }
}

/// `launch`: for this rank.
Child start_child(const job::LaunchEnvironment& launch, int task_fd) {
  Child child;
  child.rank = launch.rank;
  child.error = write_memory_file("");
  std::vector<std::string> inherited;
  for (char** entry = environ; *entry != nullptr; ++entry) inherited.emplace_back(*entry);
  job::ProcessSpec spec{"/proc/self/exe", {program_invocation_name}, launch.to_env(inherited)};
  spec.environment.push_back(fmt::format("{}={}", kTaskVariable, task_fd));
  spec.environment.push_back(fmt::format("{}={}", kErrorVariable, child.error.get()));
  spec.inherited_fds = {*launch.segment_fd, task_fd, child.error.get()};
  spec.group = job::Group::callers;
  sigset_t none;
  ::sigemptyset(&none);
  const job::StartedProcess started = job::start_process(spec, none);
  errno = started.error;
  if (started.error != 0) fail_errno("cannot start rank " + std::to_string(launch.rank));
  child.pid = started.pid;
  child.pidfd = job::open_pidfd(started.pid);
  if (!child.pidfd.valid()) {
    const int reason = errno;
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    errno = reason;
    fail_errno("cannot watch rank " + std::to_string(launch.rank));
  }
  return child;
}

}  // namespace

Spawnable::Spawnable(const char* name, SpawnFunction function) : name_(name) {
  spawnables()[name] = function;
  detail::set_spawned_main(spawned_main);
}

std::optional<int> spawned_main() {
  const auto task_fd = env::get_int(kTaskVariable);
  const auto error_fd = env::get_int(kErrorVariable);
  if (!task_fd || !error_fd) return std::nullopt;
  env::set(kTaskVariable, std::nullopt);
  env::set(kErrorVariable, std::nullopt);
  const UniqueFd task_file(static_cast<int>(*task_fd)), error_file(static_cast<int>(*error_fd));
  ::fcntl(task_file.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(error_file.get(), F_SETFD, FD_CLOEXEC);
  try {
    const json task = from_cbor(read_all(task_file.get()));
    const auto found = spawnables().find(task.at("function").get<std::string>());
    if (found == spawnables().end()) throw Error("this program has no Spawnable of that name");
    found->second(static_cast<int>(env::get_int(env::kRank).value_or(0)), task.at("arguments"));
    return 0;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    // When it failed, in digits of a fixed number, and why.
    const std::string since = std::to_string(SpawnClock::now().time_since_epoch().count());
    const std::string message =
        std::string(kStampDigits - since.size(), '0') + since + text.substr(0, text.find('\n'));
    if (::pwrite(error_file.get(), message.data(), message.size(), 0) < 0) print_error(error);
    return exit_code(error);
  }
}

struct SpawnContext::State {
  timeline::JobParts timeline{std::to_string(::getpid())};  // goes last, after the children
  std::vector<Child> children;
  std::vector<pid_t> pids;
  UniqueFd segment_fd;
  std::optional<shm::Segment> segment;
  c10::intrusive_ptr<c10d::TCPStore> store;
  SpawnOptions options;
  std::optional<SpawnError> failure;  // what join() has thrown

  bool all_ended() const {
    return std::all_of(children.begin(), children.end(), [](const Child& child) { return child.ended; });
  }

  /// Waits for ends until the deadline and notes them; returns those that came.
  std::vector<Child*> wait_for_some(std::optional<SpawnClock::time_point> deadline) {
    std::vector<pollfd> events;
    for (const Child& child : children) {
      if (!child.ended) events.push_back({child.pidfd.get(), POLLIN, 0});
    }
    int milliseconds = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - SpawnClock::now()).count();
      milliseconds = static_cast<int>(std::clamp<int64_t>(left, 0, 60000));
    }
    ::poll(events.data(), events.size(), milliseconds);
    std::vector<Child*> ended;
    for (Child& child : children) {
      if (child.ended) continue;
      const pid_t told = ::waitpid(child.pid, &child.status, WNOHANG);
      if (told == 0 || (told < 0 && errno == EINTR)) continue;
      child.ended = true;
      child.status_is_lost = told < 0;
      if (child.status_is_lost) child.status = W_EXITCODE(EXIT_FAILURE, 0);
      segment->mark_exited(child.rank, child.status);  // peers that wait for it learn it at once
      ended.push_back(&child);
    }
    return ended;
  }

  void signal_all(int signal) const {
    for (const Child& child : children) {
      if (!child.ended) ::kill(child.pid, signal);
    }
  }

  void end_all() {
    signal_all(SIGTERM);
    const auto deadline = SpawnClock::now() + options.grace;
    while (!all_ended() && SpawnClock::now() < deadline) wait_for_some(deadline);
    signal_all(SIGKILL);
    while (!all_ended()) wait_for_some(std::nullopt);
  }

  static SpawnError error_of(const Child& child) {
    std::string message = read_all(child.error.get());
    if (!message.empty()) {
      message = "failed: " + message.substr(kStampDigits);
    } else if (child.status_is_lost) {
      message =
          "ended, and something else in this program took its exit status: wait for no children but your own";
    } else {
      message = shm::describe_wait_status(child.status);
    }
    return {fmt::format("rank {} (pid {}) {}", child.rank, child.pid, message), child.rank, child.status};
  }
};

SpawnContext::SpawnContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
SpawnContext::SpawnContext(SpawnContext&&) noexcept = default;

SpawnContext::~SpawnContext() {
  if (!state_) return;
  state_->signal_all(SIGKILL);
  while (!state_->all_ended()) state_->wait_for_some(std::nullopt);
}

const std::vector<pid_t>& SpawnContext::pids() const { return state_->pids; }

bool SpawnContext::join(std::optional<std::chrono::milliseconds> timeout) {
  if (state_->failure) throw *state_->failure;
  std::optional<SpawnClock::time_point> deadline;
  if (timeout) deadline = SpawnClock::now() + *timeout;
  while (!state_->all_ended()) {
    auto ended = state_->wait_for_some(deadline);
    std::erase_if(ended, [](const Child* child) { return child->status == 0; });
    if (!ended.empty()) {
      // The one that these lost ended before them, and may have been looked at too early.
      for (Child* const child : state_->wait_for_some(SpawnClock::now())) {
        if (child->status != 0) ended.push_back(child);
      }
    }
    // When several ended together, one that a signal killed, or that ended without a word, is the cause: the others may have lost it.
    const auto weight = [](const Child* child) {
      return WIFSIGNALED(child->status) ? 2 : read_all(child->error.get()).empty() ? 1 : 0;
    };
    const auto found = std::max_element(
        ended.begin(), ended.end(), [&](const Child* a, const Child* b) { return weight(a) < weight(b); });
    const Child* failed = found == ended.end() ? nullptr : *found;
    if (failed != nullptr) {
      // A rank that has failed says so before it leaves, and others that lost it may have ended before it.
      std::string first = read_all(failed->error.get());
      for (const Child& child : state_->children) {
        const std::string message = read_all(child.error.get());
        if (first.empty() || message.empty() || message >= first) continue;
        first = message;
        failed = &child;
      }
      state_->end_all();
      state_->failure = State::error_of(*failed);
      throw *state_->failure;
    }
    if (deadline && SpawnClock::now() >= *deadline) return state_->all_ended();
  }
  return true;
}

SpawnContext start_processes(const Spawnable& function, int nprocs, const json& arguments,
                             SpawnOptions options) {
  if (env::get(kTaskVariable)) {
    throw Error(
        "spawn: this process was itself started by spawn() but did not run its function: wrap main() in "
        "run_main() or "
        "begin it with spawned_main()");
  }
  check_ends_are_told();
  auto state = std::make_unique<SpawnContext::State>();
  state->options = options;
  state->segment_fd = shm::create_segment(nprocs);
  state->segment.emplace(shm::Segment::map(state->segment_fd.get()));
  state->store = serve_store();
  const UniqueFd task = write_memory_file(to_cbor({{"function", function.name()}, {"arguments", arguments}}));
  SpawnContext context(std::move(state));
  job::LaunchEnvironment launch;
  launch.world_size = launch.local_world_size = nprocs;
  launch.master_addr = "127.0.0.1";
  launch.master_port = context.state_->store->getPort();
  launch.agent_store = true;
  launch.segment_fd = context.state_->segment_fd.get();
  launch.timeline_parts = context.state_->timeline.folder().string();
  launch.threads = std::max(1, usable_cores() / nprocs);
  for (int rank = 0; rank < nprocs; ++rank) {
    context.state_->children.push_back(start_child(launch.of_local_rank(rank), task.get()));
    context.state_->pids.push_back(context.state_->children.back().pid);
  }
  return context;
}

void spawn(const Spawnable& function, int nprocs, const json& arguments, SpawnOptions options) {
  start_processes(function, nprocs, arguments, options).join();
}

void spawn(const Spawnable& function, int nprocs) { spawn(function, nprocs, json::object()); }

}  // namespace lockstep
