#include "launcher/process/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "launcher/process/scratch.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/job/spare.h"

namespace lockstep::launcher {
namespace {

constexpr double kKillTimeout = 30;

/// Tells in which order children have died: waitpid() returns those that it finds dead in the order of their start,
/// so a guardian that had to wait for a core would blame the wrong rank. Without pidfds (before Linux 5.3, or no
/// descriptors left) it says nothing.
class DeathOrder {
 public:
  void add(pid_t pid) {
    UniqueFd fd = job::open_pidfd(pid);
    epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<uint64_t>(pid)}};
    if (fd.valid() && ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0)
      pidfds_[pid] = std::move(fd);
  }

  /// The dead among the children added, the first to die first. Each is named once.
  std::vector<pid_t> take() {
    std::vector<epoll_event> events(pidfds_.size());
    if (events.empty()) return {};
    // epoll's list of what is ready is in the order in which it became ready.
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    std::vector<pid_t> dead;
    for (int i = 0; i < count; ++i) {
      dead.push_back(static_cast<pid_t>(events[static_cast<size_t>(i)].data.u64));
      pidfds_.erase(dead.back());
    }
    return dead;
  }

 private:
  UniqueFd epoll_{::epoll_create1(EPOLL_CLOEXEC)};
  std::map<pid_t, UniqueFd> pidfds_;
};

void remove_scratch(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
}

/// All threads that a running process has. One that has ended meanwhile is no error.
void bind_process(pid_t pid, const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    ::sched_setaffinity(std::atoi(entry.path().filename().c_str()), sizeof set, &set);
  }
}

/// The guardian's side; lives in the guardian's process only.
class GuardianProcess {
 public:
  GuardianProcess(const GuardianPlan& plan, int socket)
      : plan_(plan),
        socket_(socket),
        pids_(plan.workers.size(), 0),
        groups_(plan.workers.size(), 0),
        given_(plan.workers.size()),
        spares_(plan.spares.size()) {}

  [[noreturn]] void run() {
    ::setsid();
    ::prctl(PR_SET_NAME, "lockrun-guard");
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    // What is sent to a whole process group or session is lockrun's to decide about.
    sigset_t all, child;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    ::sigemptyset(&child);
    ::sigaddset(&child, SIGCHLD);
    const int signals = ::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    for (const int fd : plan_.lockrun_fds) ::close(fd);
    if (make_directories()) start_workers();
    sweep_scratch(std::filesystem::path(plan_.scratch_directory).parent_path().string());
    while (true) {
      std::vector<pollfd> waits{{socket_, POLLIN, 0}, {signals, POLLIN, 0}};
      for (const Spare& spare : spares_) {
        if (spare.is_open) waits.push_back({spare.socket.get(), POLLIN, 0});
      }
      ::poll(waits.data(), waits.size(), -1);
      signalfd_siginfo info;
      while (::read(signals, &info, sizeof info) > 0) {
      }
      reap();
      listen_to_spares();
      if (waits[0].revents != 0) obey();
    }
  }

 private:
  /// Here and not in lockrun, which may be killed at any time: this process lives on and removes them.
  bool make_directories() {
    scratch_ = make_scratch(plan_.scratch_directory);
    int error = scratch_.valid() || plan_.directories.empty() ? 0 : errno;
    for (const std::string& directory : plan_.directories) {
      std::error_code failure;
      if (error == 0) std::filesystem::create_directories(directory, failure);
      if (failure) error = failure.value();
    }
    if (error != 0) report({Event::no_directory, 0, 0, error, monotonic_seconds()});
    return error == 0;
  }

  void start_workers() {
    for (size_t i = 0; i < plan_.workers.size(); ++i) start_worker(i);
    // A worker that is started again writes into the same pipes.
    if (!plan_.may_replace) close_workers_ends();
  }

  struct Spare {
    pid_t pid = 0;         // 0: none in this slot
    UniqueFd socket{};     // the guardian's end
    bool is_open = false;  // it may say something
    std::vector<std::string> environment{};
  };

  void start_spare(size_t slot) {
    if (slot >= spares_.size() || spares_[slot].pid > 0) return;
    int ends[2];
    job::ProcessSpec spec = plan_.spares[slot];
    job::StartedProcess started;
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) {
      Spare spare{.socket = UniqueFd(ends[0]), .is_open = true};
      const UniqueFd theirs(ends[1]);
      spec.environment = job::make_spare_environment(std::move(spec.environment), theirs.get());
      spec.inherited_fds.push_back(theirs.get());
      started = job::start_process(spec, plan_.worker_mask);
      spare.pid = std::max(started.pid, 0);
      spare.environment = std::move(spec.environment);
      if (started.error == 0) spares_[slot] = std::move(spare);
    } else {
      started = {-1, errno, false};
    }
    if (started.error == 0) deaths_.add(started.pid);
    report({started.error != 0 ? Event::start_failed : Event::started, kSpareProcess, started.pid,
            started.error, monotonic_seconds(), static_cast<int>(slot)});
  }

  void listen_to_spares() {
    for (size_t slot = 0; slot < spares_.size(); ++slot) {
      Spare& spare = spares_[slot];
      if (!spare.is_open || !job::receive_waits(spare.socket.get(), spare.is_open)) continue;
      report({Event::spare_waits, kSpareProcess, spare.pid, 0, monotonic_seconds(), static_cast<int>(slot)});
    }
  }

  /// False: no process is in the slot that could.
  bool give_place(size_t i, int slot) {
    if (slot < 0 || static_cast<size_t>(slot) >= spares_.size()) return false;
    Spare spare = std::exchange(spares_[static_cast<size_t>(slot)], {});
    const job::ProcessSpec& rank = plan_.workers[i];
    if (spare.pid <= 0) return false;
    const auto stream = [](int fd, int otherwise) { return fd >= 0 ? fd : otherwise; };
    job::Place place{.environment = job::find_changes(spare.environment, rank.environment)};
    place.streams[0] = stream(rank.stdin_fd, 0);
    place.streams[1] = stream(rank.stdout_fd, 1);
    place.streams[2] = stream(rank.stderr_fd, 2);
    if (!rank.cores.empty()) bind_process(spare.pid, rank.cores);
    if (!job::send_place(spare.socket.get(), place)) {
      // It dies just now, or has closed its socket: it may not stay where nobody counts it.
      ::kill(-spare.pid, SIGKILL);
      return false;
    }
    // An end that is closed with something unread would be an error for the spare.
    given_[i] = std::move(spare.socket);
    pids_[i] = groups_[i] = spare.pid;
    report({Event::started, static_cast<int>(i), spare.pid, 0, monotonic_seconds(), slot});
    return true;
  }

  void start_worker(size_t i) {
    const job::StartedProcess started = job::start_process(plan_.workers[i], plan_.worker_mask);
    pids_[i] = groups_[i] = started.pid;
    if (started.pid > 0) deaths_.add(started.pid);
    const int process = static_cast<int>(i);
    if (started.error != 0) {
      report({Event::start_failed, process, started.could_fork ? 0 : -1, started.error, monotonic_seconds()});
    } else {
      report({Event::started, process, started.pid, 0, monotonic_seconds()});
    }
  }

  void replace_worker(size_t i, int spare) {
    if (i >= pids_.size() || pids_[i] > 0) return;
    // What it had started may still write into the memory that the ranks share.
    if (groups_[i] > 0) ::kill(-groups_[i], SIGKILL);
    if (!give_place(i, spare)) start_worker(i);
  }

  /// The workers have them: the end of a pipe must mean the end of its worker.
  void close_workers_ends() {
    std::set<int> fds;
    for (const job::ProcessSpec& spare : plan_.spares) fds.insert({spare.stdout_fd, spare.stderr_fd});
    for (const job::ProcessSpec& worker : plan_.workers) {
      fds.insert({worker.stdout_fd, worker.stderr_fd});
      // What is /dev/null for a worker is the store's too, which starts later.
      const bool is_the_stores = plan_.store && worker.stdin_fd == plan_.store->stdin_fd;
      if (worker.stdin_fd > 2 && !is_the_stores) fds.insert(worker.stdin_fd);
    }
    for (const int fd : fds) ::close(fd);
  }

  void obey() {
    Command command{};
    const ssize_t size = ::recv(socket_, &command, sizeof command, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size != sizeof command) end_orphaned();
    switch (command.kind) {
      case Command::signal_workers:
        for (const pid_t pid : pids_) {
          if (pid <= 0) continue;
          // When two equal signals wait, a process gets the first one.
          if (command.value != 0) ::sigqueue(pid, command.signal, {.sival_int = command.value});
          signal_group(pid, command.signal);
        }
        // Other signals are for what a spare does not do yet, and finish() ends it.
        if (command.signal == SIGSTOP || command.signal == SIGCONT) {
          for (const Spare& spare : spares_) {
            if (spare.pid > 0) ::kill(-spare.pid, command.signal);
          }
        }
        break;
      case Command::start_store:
        start_store();
        break;
      case Command::replace_worker:
        replace_worker(static_cast<size_t>(command.value), command.spare);
        break;
      case Command::start_spare:
        start_spare(static_cast<size_t>(command.spare));
        break;
      case Command::finish:
        finish();
    }
  }

  static void signal_group(pid_t pid, int signal) {
    ::kill(-pid, signal);
    // A stopped process takes no other signal than SIGKILL before it goes on.
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT) ::kill(-pid, SIGCONT);
  }

  void start_store() {
    const job::StartedProcess started = job::start_process(*plan_.store, plan_.worker_mask);
    store_ = started.pid;
    report({started.error != 0 ? Event::start_failed : Event::started, kStore, started.pid, started.error,
            monotonic_seconds()});
  }

  /// Passes on what happened to workers; orphans that were adopted are only reaped.
  void reap() {
    int status = 0;
    for (const pid_t pid : deaths_.take()) {
      if (::waitpid(pid, &status, WNOHANG) == pid) pass_on(pid, status);
    }
    while (true) {
      const pid_t pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED);
      if (pid <= 0) return;
      pass_on(pid, status);
    }
  }

  void pass_on(pid_t pid, int status) {
    const int process = find_process(pid);
    if (process == kUnknown) return;
    Event event{Event::exited, process, pid, status, monotonic_seconds(), find_spare(pid)};
    if (WIFSTOPPED(status)) {
      event.kind = Event::stopped;
      event.status = WSTOPSIG(status);
    } else if (WIFCONTINUED(status)) {
      event.kind = Event::continued;
    } else if (process == kStore) {
      store_ = -1;
    } else if (process == kSpareProcess) {
      spares_[static_cast<size_t>(event.spare)] = {};
    } else {
      pids_[static_cast<size_t>(process)] = 0;
    }
    report(event);
  }

  static constexpr int kUnknown = -2;
  int find_process(pid_t pid) const {
    if (pid == store_) return kStore;
    for (size_t i = 0; i < pids_.size(); ++i) {
      if (pids_[i] == pid) return static_cast<int>(i);
    }
    return find_spare(pid) != kNoSpare ? kSpareProcess : kUnknown;
  }

  int find_spare(pid_t pid) const {
    const auto found =
        std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) { return spare.pid == pid; });
    return found == spares_.end() ? kNoSpare : static_cast<int>(found - spares_.begin());
  }

  [[noreturn]] void finish() {
    if (store_ > 0) {
      ::kill(store_, SIGKILL);
      ::waitpid(store_, nullptr, 0);
    }
    for (const Spare& spare : spares_) {
      if (spare.pid <= 0) continue;
      ::kill(-spare.pid, SIGKILL);
      ::waitpid(spare.pid, nullptr, 0);
    }
    int ended = 0;
    if (plan_.may_replace) close_workers_ends();
    // Python's helpers clean up after their parent is gone, which takes a moment.
    if (!wait_for_children()) {
      const std::vector<pid_t> left = job::children();
      ended = static_cast<int>(left.size());
      for (const pid_t pid : left) {
        ::kill(pid, SIGTERM);
        ::kill(pid, SIGCONT);
      }
      if (!wait_for_children()) kill_all();
    }
    report({Event::finished, kUnknown, 0, ended, monotonic_seconds()});
    // lockrun reads the ranks' error files, and closes the socket then.
    Command command{};
    while (::recv(socket_, &command, sizeof command, 0) > 0) {
    }
    remove_scratch(plan_.scratch_directory);
    ::_exit(0);
  }

  /// Reaps children for the time that they have, or until lockrun hurries; true when there are none.
  bool wait_for_children() {
    constexpr int kShortest = 2, kLongest = 50;  // milliseconds between two looks
    const double deadline = monotonic_seconds() + plan_.leftover_timeout;
    int pause = kShortest;
    while (true) {
      const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
      if (pid < 0 && errno == ECHILD) return true;
      if (hurries_ || monotonic_seconds() > deadline) return false;
      if (pid > 0) continue;
      pollfd wait{socket_, POLLIN, 0};
      if (::poll(&wait, 1, pause) > 0) read_while_finishing();
      pause = std::min(2 * pause, kLongest);
    }
  }

  void read_while_finishing() {
    Command command{};
    if (::recv(socket_, &command, sizeof command, 0) != sizeof command) end_orphaned();
    hurries_ = hurries_ || command.kind == Command::finish;
  }

  void kill_all() const {
    if (plan_.cgroup != nullptr) plan_.cgroup->kill();
    job::kill_descendants({}, kKillTimeout);
  }

  /// lockrun is dead.
  [[noreturn]] void end_orphaned() {
    kill_all();
    if (plan_.cgroup != nullptr) plan_.cgroup->end();
    remove_scratch(plan_.scratch_directory);
    ::_exit(1);
  }

  void report(const Event& event) {
    if (::send(socket_, &event, sizeof event, MSG_NOSIGNAL) != sizeof event) end_orphaned();
  }

  const GuardianPlan& plan_;
  int socket_;
  std::vector<pid_t> pids_;
  std::vector<pid_t> groups_;  ///< process groups of the workers, also of those that have ended
  DeathOrder deaths_;
  std::vector<UniqueFd> given_;  ///< sockets of the spares that have become workers
  std::vector<Spare> spares_;    ///< by slot
  pid_t store_ = -1;
  bool hurries_ = false;  ///< left-over processes have no more time
  UniqueFd scratch_;      ///< locked, so that others see that it is in use
};

}  // namespace

Guardian::Guardian(const GuardianPlan& plan)
    : earlier_children_(job::children()), cgroup_(plan.cgroup), scratch_directory_(plan.scratch_directory) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(std::string("cannot make a socket pair: ") + std::strerror(errno));
  }
  socket_.reset(ends[0]);
  UniqueFd theirs(ends[1]);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  pid_ = ::fork();
  if (pid_ < 0) throw Error(std::string("cannot fork: ") + std::strerror(errno));
  if (pid_ == 0) {
    socket_.reset();
    GuardianProcess(plan, theirs.get()).run();
  }
}

Guardian::~Guardian() {
  // The end of the socket makes a living guardian end everything; if it is dead its children are ours. Other processes that
  // lockrun has forked may have the socket too.
  ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
  ::kill(pid_, gone_ ? SIGKILL : SIGCONT);  // it may hang, or somebody may have stopped it
  const double deadline = monotonic_seconds() + kKillTimeout;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0 && monotonic_seconds() < deadline) ::usleep(200);
  if (cgroup_ != nullptr) cgroup_->kill();
  job::kill_descendants(earlier_children_, kKillTimeout);
  if (gone_) remove_scratch(scratch_directory_);
}

void Guardian::send(Command command) {
  // A dead guardian is noticed by receive().
  (void)::send(socket_.get(), &command, sizeof command, MSG_NOSIGNAL);
  wake();
}

void Guardian::wake() {
  if (!gone_) ::kill(pid_, SIGCONT);
}

std::optional<Event> Guardian::receive() {
  Event event{};
  const ssize_t size = ::recv(socket_.get(), &event, sizeof event, MSG_DONTWAIT);
  if (size == sizeof event) return event;
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  gone_ = true;
  return std::nullopt;
}

}  // namespace lockstep::launcher
