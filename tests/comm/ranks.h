// Runs a function as several ranks: as processes (what users have) or as threads (what a thread sanitizer can
// see).
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

// For tests of how much memory or address space something takes: the sanitizer takes many times as much itself.
#if defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_THREAD_SANITIZER() GTEST_SKIP() << "the thread sanitizer maps memory of its own"
#else
#define SKIP_UNDER_THREAD_SANITIZER() static_cast<void>(0)
#endif

namespace lockstep::testing {

/// Forks `count` processes that run `body(rank)` and returns their wait statuses. A rank in which an
/// exception escapes or a gtest assertion fails prints it and ends with exit code 1. No thread may run in the
/// caller.
inline std::vector<int> run_processes(int count, const std::function<void(int)>& body) {
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(240);  // a test that hangs must not outlive its runner
      int code = 0;
      try {
        body(rank);
        code = ::testing::Test::HasFailure() ? 1 : 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        code = 1;
      }
      std::fflush(nullptr);
      ::_exit(code);
    }
    children.push_back(pid);
  }
  std::vector<int> statuses;
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    statuses.push_back(status);
  }
  return statuses;
}

inline void expect_all_succeed(const std::vector<int>& statuses) {
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_EQ(statuses[rank], 0) << "wait status of rank " << rank;
  }
}

/// Runs `body(rank)` in `count` threads of this process; an escaping exception fails the test.
inline void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&body, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace lockstep::testing
