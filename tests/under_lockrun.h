// Starts commands of a shell, and a test program's case as ranks under lockrun.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace lockstep::testing {

struct CommandResult {
  int exit_code = -1;  ///< 128 and the signal where a signal ended it
  std::string output;  ///< standard output and error together
};

/// `command` must end by itself: `timeout` may stand at its start.
inline CommandResult run_command(const std::string& command) {
  FILE* const pipe = ::popen((command + " 2>&1 </dev/null").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("no shell starts for: " + command);
  CommandResult result;
  std::array<char, 4096> buffer{};
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    result.output.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

/// `command`: program and arguments, as for a shell. Ends after 100 s at the latest.
inline CommandResult under_lockrun(int ranks, const std::string& command,
                                   const std::string& environment = "") {
  return run_command(environment +
                     " timeout -k 5 100 " LOCKSTEP_BIN_DIR "/lockrun --standalone --nproc-per-node " +
                     std::to_string(ranks) + " " + command);
}

inline void expect_case_succeeds(int ranks, const std::string& program, const std::string& name,
                                 const std::string& environment = "") {
  const auto result = under_lockrun(ranks, LOCKSTEP_TEST_BIN_DIR "/" + program + " " + name, environment);
  EXPECT_EQ(result.exit_code, 0) << result.output;
}

}  // namespace lockstep::testing
