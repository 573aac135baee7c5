#include "launcher/watch/stacks.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "launcher/watch/stack_text.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/job/child_process.h"

namespace lockstep::launcher {
namespace {

constexpr double kToolTimeout = 10;
constexpr size_t kMostText = size_t{4} << 20;

void put(int fd, const std::string& text) {
  if (::write(fd, text.data(), text.size()) < 0) ::_exit(0);  // nobody reads any more
}

std::string first_line(const std::string& path) {
  try {
    const std::string text = read_file(path);
    return text.substr(0, text.find('\n'));
  } catch (const FileError&) {
    return "?";
  }
}

/// What the kernel tells of every thread: its name, its state and where in the kernel it sleeps.
void put_threads(int fd, pid_t pid) {
  std::error_code error;
  const std::string tasks = fmt::format("/proc/{}/task", pid);
  for (const auto& entry : std::filesystem::directory_iterator(tasks, error)) {
    const std::string path = entry.path().string();
    const std::string stat = first_line(path + "/stat");
    const size_t name_end = stat.rfind(')');
    const char state = name_end != stat.npos && name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
    put(fd, fmt::format("  thread {} ({}): state {}, in the kernel at {}\n", entry.path().filename().string(),
                        first_line(path + "/comm"), state, first_line(path + "/wchan")));
  }
}

/// Runs a tool, 10 s at most. Returns its wait status; `text`: what it has printed.
int run_tool(const std::vector<std::string>& command, std::string& text) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return 127 << 8;
  const UniqueFd output(ends[0]);
  UniqueFd tools_end(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return 127 << 8;
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = ::open("/dev/null", O_RDWR);
    if (null < 0) ::_exit(127);
    ::dup2(null, 0);
    ::dup2(tools_end.get(), 1);
    ::dup2(null, 2);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  tools_end.reset();
  ::fcntl(output.get(), F_SETFL, O_NONBLOCK);
  const auto read_some = [&] {
    char buffer[1 << 14];
    for (ssize_t size = 0; (size = ::read(output.get(), buffer, sizeof buffer)) > 0;) {
      if (text.size() < kMostText) text.append(buffer, static_cast<size_t>(size));
    }
  };
  int status = 0;
  const double deadline = monotonic_seconds() + kToolTimeout;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (monotonic_seconds() > deadline) ::kill(pid, SIGKILL);
    read_some();
    ::usleep(5000);
  }
  read_some();
  return status;
}

/// The frames of `pid`, by the first tool that can tell them; false when there is none.
bool put_frames(int fd, pid_t pid) {
  const std::string number = std::to_string(pid);
  const bool was_stopped = is_stopped(pid);
  for (const std::vector<std::string>& tool :
       {std::vector<std::string>{"eu-stack", "-p", number},
        std::vector<std::string>{"gdb", "-batch", "-p", number, "-ex", "thread apply all bt"}}) {
    std::string text;
    const int status = run_tool(tool, text);
    put(fd, short_stacks(text));
    // A tool that dies while it looks at a process leaves that one stopped.
    if (WIFSIGNALED(status) && !was_stopped) ::kill(pid, SIGCONT);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 127) return true;
  }
  return false;
}

/// The signal at which a Python rank writes the lines that it is at, and the file for them: python/lockstep/watch.py.
struct PythonStacks {
  int signal;
  std::string path;
};

std::optional<PythonStacks> find_python_stacks(pid_t pid) {
  static constexpr std::string_view kName = "/memfd:lockstep_python_stacks.";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (!target.starts_with(kName)) continue;
    const int signal = std::atoi(target.c_str() + kName.size());
    if (signal >= SIGRTMIN && signal <= SIGRTMAX) return PythonStacks{signal, entry.path().string()};
  }
  return std::nullopt;
}

/// What a Python rank that has imported our package writes about itself. Needs no tool, and no lock of the interpreter.
void put_python_lines(int fd, pid_t pid) {
  const auto stacks = find_python_stacks(pid);
  if (!stacks || !catches(pid, stacks->signal)) return;
  const UniqueFd file(::open(stacks->path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat before {
  }, now{};
  if (file.get() < 0 || ::fstat(file.get(), &before) != 0) return;
  if (is_stopped(pid) || ::kill(pid, stacks->signal) != 0) return;
  constexpr double kLongest = 1, kQuiet = 0.1;  // it writes line by line
  const double begin = monotonic_seconds();
  double changed = begin;
  now = before;
  for (double moment = begin; moment < begin + kLongest; moment = monotonic_seconds()) {
    const off_t size = now.st_size;
    if (::fstat(file.get(), &now) != 0) return;
    if (now.st_size != size) changed = moment;
    if (now.st_size != before.st_size && moment > changed + kQuiet) break;
    ::usleep(5000);
  }
  std::string text(std::min(static_cast<size_t>(now.st_size - before.st_size), kMostText), '\0');
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), before.st_size);
  if (size > 0) put(fd, short_python_stacks(std::string_view(text).substr(0, static_cast<size_t>(size))));
}

void put_stacks(int fd, const std::vector<StackTarget>& targets) {
  for (const StackTarget& target : targets) {
    const std::string pid = std::to_string(target.pid);
    put(fd, fmt::format("rank {} (pid {})\n", target.rank, pid));
    put_threads(fd, target.pid);
    put_python_lines(fd, target.pid);
    if (!put_frames(fd, target.pid)) {
      put(fd, "  (its own frames: install elfutils, for eu-stack, or gdb)\n");
    }
  }
}

}  // namespace

bool is_stopped(pid_t pid) {
  const std::string stat = first_line(fmt::format("/proc/{}/stat", pid));
  const size_t name_end = stat.rfind(") ");
  return name_end != stat.npos && stat.compare(name_end + 2, 1, "T") == 0;
}

bool catches(pid_t pid, int signal) {
  std::string status;
  try {
    status = read_file(fmt::format("/proc/{}/status", pid));
  } catch (const FileError&) {
    return false;
  }
  static constexpr std::string_view kField = "\nSigCgt:\t";
  const size_t at = status.find(kField);
  if (at == status.npos) return false;
  return (std::strtoull(status.c_str() + at + kField.size(), nullptr, 16) >> (signal - 1) & 1) != 0;
}

StackDump::StackDump(const std::vector<StackTarget>& targets) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("cannot open a pipe: ") + std::strerror(errno));
  fd_.reset(ends[0]);
  UniqueFd write_end(ends[1]);
  pid_ = job::fork_helper("lockrun-stacks");
  if (pid_ == 0) {
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    put_stacks(write_end.get(), targets);
    ::_exit(0);
  }
  ::fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
}

StackDump::~StackDump() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool StackDump::read_some() {
  char buffer[1 << 14];
  const ssize_t size = ::read(fd_.get(), buffer, sizeof buffer);
  if (size > 0) {
    if (text_.size() < kMostText) text_.append(buffer, static_cast<size_t>(size));
    return false;
  }
  return !(size < 0 && (errno == EAGAIN || errno == EINTR));
}

}  // namespace lockstep::launcher
