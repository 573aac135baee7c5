#include "tools/data/run_program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep::tools {

TemporaryDirectory::TemporaryDirectory(const std::filesystem::path& parent) {
  const auto place = parent.empty() ? std::filesystem::temp_directory_path() : parent;
  std::string name = (place / "lockstep-data.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw FileError(fmt::format("cannot make {}: {}", name, std::strerror(errno)));
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void end_if_stopped() {
  if (const int signal = stop_signal())
    throw ReportedError(fmt::format("stopped by {}", ::strsignal(signal)), 128 + signal);
}

void run_program(const std::vector<std::string>& words, const std::filesystem::path& directory,
                 const std::string& help) {
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  end_if_stopped();
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(fmt::format("cannot start {}: {}", words[0], std::strerror(errno)));
  if (pid == 0) {
    constexpr int not_found = 127;
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::setpgid(0, 0);  // to end it with the programs that it starts
    if (::chdir(directory.c_str()) != 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) ::_exit(not_found);
    ::execvp(arguments[0], arguments.data());
    ::_exit(not_found);
  }
  int status = 0;
  // A signal may come between a look at it and a call that waits, so nothing waits for long.
  constexpr auto pause = std::chrono::milliseconds(20);
  constexpr int most_pauses = 100;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (stop_signal() != 0) ::kill(-pid, SIGTERM);
    std::this_thread::sleep_for(pause);
  }
  // What it has started may write on for a moment.
  for (int i = 0; i < most_pauses && stop_signal() != 0 && ::kill(-pid, SIGTERM) == 0; ++i)
    std::this_thread::sleep_for(pause);
  end_if_stopped();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error(fmt::format("{} failed; {}", fmt::join(words, " "), help));
}

}  // namespace lockstep::tools
