#include "launcher/run/assigned_job.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>

#include "launcher/machines/assignment.h"
#include "launcher/machines/machine.h"
#include "launcher/run/job.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/job/child_process.h"

namespace lockstep::launcher {
namespace {

constexpr double kAssignmentTimeout = 60;
constexpr size_t kLongestAssignment = size_t{64} << 20;

/// Appends what standard input has; false at its end.
bool read_more(std::string& text) {
  char buffer[1 << 14];
  ssize_t size = 0;
  do {
    size = ::read(0, buffer, sizeof buffer);
  } while (size < 0 && errno == EINTR);
  if (size > 0) text.append(buffer, static_cast<size_t>(size));
  return size > 0;
}

/// The assignment, and in `rest` what follows it.
Assignment receive_assignment(std::string& rest) {
  const double deadline = monotonic_seconds() + kAssignmentTimeout;
  std::string text;
  size_t begin = 0, length = 0;
  while (begin == 0 || text.size() < begin + length) {
    pollfd wait{0, POLLIN, 0};
    const double left = deadline - monotonic_seconds();
    if (left <= 0 || (::poll(&wait, 1, static_cast<int>(left * 1000) + 1) == 1 && !read_more(text))) {
      throw Error("no assignment came on standard input; lockrun --assigned is for lockrun --hosts to start");
    }
    const size_t end = text.find('\n');
    if (begin != 0 || end == text.npos) continue;
    begin = end + 1;
    const auto parsed = std::from_chars(text.data(), text.data() + end, length);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + end || length > kLongestAssignment) {
      throw ValueError("what standard input brings is no assignment of a lockrun's");
    }
  }
  rest = text.substr(begin + length);
  return parse_assignment(std::string_view(text).substr(begin, length));
}

/// Lives in a process of its own.
[[noreturn]] void listen_for(pid_t lockrun, std::string text) {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  // The end of lockrun's output is the end of its streams.
  ::close(1);
  ::close(2);
  do {
    constexpr std::string_view word = "signal ";
    for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
      int signal = 0;
      if (text.starts_with(word)) std::from_chars(text.data() + word.size(), text.data() + end, signal);
      if (signal > 0) ::kill(lockrun, signal);
      text.erase(0, end + 1);
    }
  } while (read_more(text));
  // The other lockrun is dead: the guardian here ends all that this one has started.
  ::kill(lockrun, SIGKILL);
  ::_exit(0);
}

/// The process that listens; ends with its owner.
class Listening {
 public:
  explicit Listening(const std::string& rest) {
    const pid_t lockrun = ::getpid();
    pid_ = job::fork_helper("lockrun-link");
    if (pid_ == 0) listen_for(lockrun, rest);
    // Standard input is the listener's.
    const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!null.valid() || ::dup2(null.get(), 0) != 0) throw Error("cannot open /dev/null");
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
  ~Listening() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

}  // namespace

int run_assigned_job(const Machine& machine) {
  const std::string greeting = std::string(kGreeting) + "\n";
  if (::write(1, greeting.data(), greeting.size()) != static_cast<ssize_t>(greeting.size())) {
    throw Error("standard output cannot be written");
  }
  std::string rest;
  const Assignment assignment = receive_assignment(rest);
  const Listening listening(rest);
  for (const std::string& entry : assignment.environment) {
    const size_t equals = entry.find('=');
    if (equals != entry.npos) env::set(entry.substr(0, equals), entry.substr(equals + 1));
  }
  if (::chdir(assignment.directory.c_str()) != 0) {
    throw FileError(fmt::format("cannot work in {}, as the lockrun that was started by hand does: {}",
                                assignment.directory, std::strerror(errno)));
  }
  std::vector<const char*> words = {"lockrun"};
  for (const std::string& argument : assignment.arguments) words.push_back(argument.c_str());
  Machine here = machine;
  here.assigned = assignment.place;
  Options options = parse_options(static_cast<int>(words.size()), words.data(), here);
  options.assigned = true;
  options.prefix = parse_prefix(assignment.prefix);
  options.nodes.host = assignment.place.master_addr;
  options.nodes.port = assignment.place.master_port;
  options.nodes.secret = assignment.secret;
  options.nodes.local_addr.clear();
  return run_job(options, here);
}

}  // namespace lockstep::launcher
