#include "lockstep/comm/spawn.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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
#include "lockstep/base/fd.h"
#include "lockstep/base/json.h"
#include "lockstep/base/main.h"
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
  throw Error("spawn: " + what + ": " + std::strerror(errno));
}

/// An unnamed file that the children read, each from its start.
UniqueFd file_of(const std::string& content) {
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
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener.valid() || ::bind(listener.get(), generic, length) != 0 ||
      ::listen(listener.get(), 256) != 0 || ::getsockname(listener.get(), generic, &length) != 0) {
    fail_errno("cannot open a local port for the store");
  }
  c10d::TCPStoreOptions options;
  options.port = ntohs(address.sin_port);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = listener.release();
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

std::vector<std::string> environment_of(int rank, int nprocs, int segment_fd, int port, int task_fd,
                                        int error_fd, const std::string& timeline_parts) {
  std::map<std::string, std::string> own{{"RANK", std::to_string(rank)},
                                         {"LOCAL_RANK", std::to_string(rank)},
                                         {"WORLD_SIZE", std::to_string(nprocs)},
                                         {"LOCAL_WORLD_SIZE", std::to_string(nprocs)},
                                         {"GROUP_RANK", "0"},
                                         {"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", std::to_string(port)},
                                         {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                         {"TORCHELASTIC_RESTART_COUNT", "0"},
                                         {"LOCKSTEP_SEGMENT_FD", std::to_string(segment_fd)},
                                         {kTaskVariable, std::to_string(task_fd)},
                                         {kErrorVariable, std::to_string(error_fd)}};
  if (!timeline_parts.empty()) own[timeline::kFolderVariable] = timeline_parts;
  if (!env::get("OMP_NUM_THREADS")) {
    own["OMP_NUM_THREADS"] = std::to_string(std::max(1, usable_cores() / nprocs));
  }
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (own.count(text.substr(0, text.find('='))) == 0) entries.push_back(text);
  }
  for (const auto& [name, value] : own) entries.push_back(name + "=" + value);
  return entries;
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

/// Between fork and exec of a process with threads only calls that are safe in a signal handler are allowed:
/// all that needs memory is made before.
Child start_child(int rank, int nprocs, int segment_fd, int port, int task_fd,
                  const std::string& timeline_parts) {
  Child child;
  child.rank = rank;
  child.error = file_of("");
  const auto entries =
      environment_of(rank, nprocs, segment_fd, port, task_fd, child.error.get(), timeline_parts);
  std::vector<char*> environment;
  for (const std::string& entry : entries) environment.push_back(const_cast<char*>(entry.c_str()));
  environment.push_back(nullptr);
  const std::string name = program_invocation_name;
  char* const arguments[] = {const_cast<char*>(name.c_str()), nullptr};
  const int kept[] = {segment_fd, task_fd, child.error.get()};
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail_errno("cannot start rank " + std::to_string(rank));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    for (const int fd : kept) ::fcntl(fd, F_SETFD, 0);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve("/proc/self/exe", arguments, environment.data());
    ::_exit(127);
  }
  child.pid = pid;
  child.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!child.pidfd.valid()) {
    const int reason = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    errno = reason;
    fail_errno("cannot watch rank " + std::to_string(rank));
  }
  return child;
}

}  // namespace

Spawnable::Spawnable(const char* name, SpawnFunction function) : name_(name) {
  spawnables()[name] = function;
  set_spawned_main(spawned_main);
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
    found->second(static_cast<int>(env::get_int("RANK").value_or(0)), task.at("arguments"));
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
    return {"rank " + std::to_string(child.rank) + " (pid " + std::to_string(child.pid) + ") " + message,
            child.rank, child.status};
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
    const auto ended = state_->wait_for_some(deadline);
    // Of those that ended together the one that a signal killed is the cause; the others may have lost it.
    const Child* failed = nullptr;
    for (const Child* child : ended) {
      if (child->status != 0 &&
          (failed == nullptr || (WIFSIGNALED(child->status) && !WIFSIGNALED(failed->status)))) {
        failed = child;
      }
    }
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
  const UniqueFd task = file_of(to_cbor({{"function", function.name()}, {"arguments", arguments}}));
  SpawnContext context(std::move(state));
  for (int rank = 0; rank < nprocs; ++rank) {
    context.state_->children.push_back(start_child(rank, nprocs, context.state_->segment_fd.get(),
                                                   context.state_->store->getPort(), task.get(),
                                                   context.state_->timeline.folder().string()));
    context.state_->pids.push_back(context.state_->children.back().pid);
  }
  return context;
}

void spawn(const Spawnable& function, int nprocs, const json& arguments, SpawnOptions options) {
  start_processes(function, nprocs, arguments, options).join();
}

void spawn(const Spawnable& function, int nprocs) { spawn(function, nprocs, json::object()); }

}  // namespace lockstep
