#include "launcher/machines/hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "launcher/output/report.h"
#include "launcher/process/program.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/job/child_process.h"
#include "lockstep/shm/segment.h"

extern char** environ;

namespace lockstep::launcher {
namespace {

constexpr size_t kLongestLine = size_t{1} << 20;
constexpr double kEndTimeout = 3;  ///< for an ssh whose lockrun is to end at once
constexpr double kDrainTimeout = 5;

void open_pipe_to(UniqueFd& read_end, UniqueFd& write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("cannot open a pipe: ") + std::strerror(errno));
  read_end.reset(ends[0]);
  write_end.reset(ends[1]);
}

}  // namespace

Hosts::Hosts(HostsPlan plan, const sigset_t& mask) : plan_(std::move(plan)) {
  ::signal(SIGPIPE, SIG_IGN);
  for (size_t i = 0; i < plan_.nodes.hosts.size(); ++i) {
    if (plan_.nodes.here == i) continue;
    const Host& host = plan_.nodes.hosts[i];
    Assignment assignment = plan_.common;
    assignment.place.node_rank = static_cast<int>(i);
    assignment.place.slots = host.slots;
    Remote remote{host.name, {}};
    remote.assignment = to_bytes(assignment);
    start(remote, remote_command(plan_.nodes, plan_.rsh, host, plan_.lockrun), mask);
    remotes_.push_back(std::move(remote));
  }
}

void Hosts::start(Remote& remote, const std::vector<std::string>& command, const sigset_t& mask) const {
  const Program program = resolve_program(command, {.no_python = true}, "",
                                          env::get(env::kPath).value_or("/usr/local/bin:/usr/bin:/bin"));
  remote.program = command.front();
  UniqueFd in, out, err;
  open_pipe_to(in, remote.in);
  open_pipe_to(remote.out, out);
  open_pipe_to(remote.err, err);
  for (const UniqueFd* fd : {&remote.in, &remote.out, &remote.err}) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  job::ProcessSpec spec{program.path, program.argv, {}, in.get(), out.get(), err.get()};
  spec.group = job::Group::own_session;
  for (char** entry = environ; *entry != nullptr; ++entry) spec.environment.emplace_back(*entry);
  const job::StartedProcess started = job::start_process(spec, mask);
  if (started.error != 0) {
    throw Error(fmt::format("cannot execute {}: {}", program.path, std::strerror(started.error)));
  }
  remote.pid = started.pid;
  remote.process = job::open_pidfd(started.pid);
  if (!remote.process.valid()) throw Error(std::string("cannot watch ssh: ") + std::strerror(errno));
}

Hosts::~Hosts() {
  for (Remote& remote : remotes_) remote.in.reset();
  const double deadline = monotonic_seconds() + kEndTimeout;
  for (Remote& remote : remotes_) {
    if (remote.ended || remote.pid <= 0) continue;
    pollfd wait{remote.process.get(), POLLIN, 0};
    const double left = std::max(0.0, deadline - monotonic_seconds());
    // Nobody reads what it still says.
    remote.out.reset();
    remote.err.reset();
    if (::poll(&wait, 1, static_cast<int>(left * 1000)) <= 0) ::kill(remote.pid, SIGKILL);
    ::waitpid(remote.pid, nullptr, 0);
  }
}

void Hosts::add_polls(PollSet& polls) {
  add_polls(polls, [this](bool is_error, std::string_view text) {
    Sink& sink = is_error ? err_ : out_;
    sink.append(std::string(text) + "\n");
    sink.flush();
  });
}

void Hosts::add_polls(PollSet& polls, const Show& show) {
  for (Remote& remote : remotes_) {
    if (remote.ended) continue;
    polls.add(remote.process.get(), POLLIN, [this, &remote, show] { finish(remote, show); });
    for (const bool is_error : {false, true}) {
      polls.add((is_error ? remote.err : remote.out).get(), POLLIN,
                [this, &remote, is_error, show] { read_some(remote, is_error, show); });
    }
    if (!remote.to_send.empty()) polls.add(remote.in.get(), POLLOUT, [&remote] { flush(remote); });
  }
  for (Sink* sink : {&out_, &err_}) {
    if (sink->backlog() > 0) polls.add(sink->fd(), POLLOUT, [sink] { sink->flush(); });
  }
}

void Hosts::drain() {
  out_.drain(kDrainTimeout);
  err_.drain(kDrainTimeout);
}

void Hosts::read_some(Remote& remote, bool is_error, const Show& show) const {
  UniqueFd& fd = is_error ? remote.err : remote.out;
  if (!fd.valid()) return;  // it has ended
  static char buffer[size_t{1} << 16];
  const ssize_t size = ::read(fd.get(), buffer, sizeof buffer);
  if (size > 0) {
    (is_error ? remote.err_line : remote.out_line).append(buffer, static_cast<size_t>(size));
    take_lines(remote, is_error, show);
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    fd.reset();
  }
}

void Hosts::take_lines(Remote& remote, bool is_error, const Show& show) const {
  std::string& text = is_error ? remote.err_line : remote.out_line;
  constexpr std::string_view own = "lockrun: ";
  std::string shown;
  size_t at = 0;
  for (size_t end = text.find('\n'); end != text.npos; at = end + 1, end = text.find('\n', at)) {
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (!remote.greeted && line == kGreeting) {
      remote.greeted = true;
      remote.to_send += remote.assignment;
    } else if (!remote.greeted) {
      // What the login prints, or ssh's complaint, which ends with a carriage return.
      remote.last_words = line.substr(0, line.find_last_not_of('\r') + 1);
      if (is_error) shown += fmt::format("{}: {}\n", remote.name, remote.last_words);
    } else if (is_error && line.starts_with(own)) {
      shown += fmt::format("lockrun on {}: {}\n", remote.name, line.substr(own.size()));
    } else {
      shown += fmt::format("{}\n", line);
    }
  }
  text.erase(0, at);
  if (!shown.empty()) show(is_error, std::string_view(shown).substr(0, shown.size() - 1));
  if (text.size() > kLongestLine) show(is_error, std::exchange(text, {}));
  flush(remote);
}

void Hosts::finish(Remote& remote, const Show& show) const {
  if (::waitpid(remote.pid, &remote.status, WNOHANG) != remote.pid) return;
  remote.ended = true;
  remote.ended_at = monotonic_seconds();
  for (const bool is_error : {false, true}) {
    UniqueFd& fd = is_error ? remote.err : remote.out;
    std::string& line = is_error ? remote.err_line : remote.out_line;
    char buffer[size_t{1} << 14];
    ssize_t size = 0;
    while (fd.valid() && (size = ::read(fd.get(), buffer, sizeof buffer)) > 0) {
      line.append(buffer, static_cast<size_t>(size));
    }
    if (!line.empty() && line.back() != '\n') line += '\n';
    take_lines(remote, is_error, show);
    fd.reset();
  }
  remote.in.reset();
}

void Hosts::flush(Remote& remote) {
  while (remote.in.valid() && !remote.to_send.empty()) {
    const ssize_t size = ::write(remote.in.get(), remote.to_send.data(), remote.to_send.size());
    if (size > 0) {
      remote.to_send.erase(0, static_cast<size_t>(size));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      remote.to_send.clear();  // it has ended, which is noticed elsewhere
    }
  }
}

void Hosts::pass_on(int signal) {
  for (Remote& remote : remotes_) {
    if (remote.ended) continue;
    if (remote.greeted) {
      remote.to_send += fmt::format("signal {}\n", signal);
      flush(remote);
    } else if (signal != SIGTSTP && signal != SIGCONT && signal != SIGUSR1 && signal != SIGUSR2) {
      interrupted_by_ = signal;
      ::kill(remote.pid, SIGTERM);
    }
  }
}

std::string Hosts::describe(const Remote& remote) const {
  const std::string ended = shm::describe_wait_status(remote.status);
  if (remote.greeted) return fmt::format("lockrun on {} {}", remote.name, ended);
  std::string text = fmt::format("cannot start lockrun on {}: {} {}", remote.name, remote.program, ended);
  if (!remote.last_words.empty()) text += fmt::format(" ({})", remote.last_words);
  const int code = exit_code(remote.status);
  if (code == 126 || code == 127)
    return fmt::format("{}; it must be at {} there, as it is here", text, plan_.lockrun);
  if (plan_.rsh.empty()) {
    text += fmt::format("; check that `ssh {}{} true` works and asks nothing",
                        plan_.nodes.ssh_port != 0 ? fmt::format("-p {} ", plan_.nodes.ssh_port) : "",
                        remote.name);
  }
  return text;
}

std::optional<std::string> Hosts::failure_to_start() const {
  for (const Remote& remote : remotes_) {
    if (remote.ended && !remote.greeted) return describe(remote);
  }
  return std::nullopt;
}

std::optional<std::string> Hosts::failure() const {
  if (const auto failure = failure_to_start()) return failure;
  for (const Remote& remote : remotes_) {
    if (remote.ended && remote.status != 0) return describe(remote);
  }
  return std::nullopt;
}

std::vector<int> Hosts::fds() const {
  std::vector<int> fds;
  for (const Remote& remote : remotes_) {
    for (const UniqueFd* fd : {&remote.in, &remote.out, &remote.err, &remote.process}) {
      if (fd->valid()) fds.push_back(fd->get());
    }
  }
  return fds;
}

void Hosts::handle_signals(Signals& signals) {
  while (const auto signal = signals.receive()) {
    pass_on(*signal);
    if (*signal != SIGTSTP) continue;
    ::raise(SIGSTOP);
    pass_on(SIGCONT);
  }
}

int Hosts::wait_for_end(Signals& signals, double seconds) {
  const double deadline = monotonic_seconds() + seconds;
  const auto runs = [](const Remote& remote) { return !remote.ended; };
  while (std::any_of(remotes_.begin(), remotes_.end(), runs)) {
    if (failure_to_start()) break;
    const double left = seconds < 0 ? 3600 : deadline - monotonic_seconds();
    if (left <= 0) break;
    PollSet polls;
    polls.add(signals.fd(), POLLIN, [&] { handle_signals(signals); });
    add_polls(polls);
    polls.wait(left);
  }
  drain();
  if (const auto failure = failure_to_start()) {
    if (interrupted_by_) return 128 + *interrupted_by_;
    throw Error(*failure);
  }
  // What fails second may have failed because of the first; 255 says that ssh itself did.
  const Remote* first = nullptr;
  for (const Remote& remote : remotes_) {
    if (!remote.ended || remote.status == 0) continue;
    const auto key = [](const Remote& r) { return std::make_pair(exit_code(r.status) == 255, r.ended_at); };
    if (first == nullptr || key(remote) < key(*first)) first = &remote;
  }
  return first == nullptr ? 0 : exit_code(first->status);
}

}  // namespace lockstep::launcher
