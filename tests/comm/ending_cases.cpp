// Cases that end the job: comm_test.cpp looks at how.
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;

namespace {

/// The test that starts the ranks gives it.
std::string setting(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) throw ValueError(std::string("the case needs ") + name);
  return value;
}
int number(const char* name) { return std::stoi(setting(name)); }

TEST(Ending, TenOperationsThenExit) {
  const World world = lockstep::testing::world();
  for (int i = 0; i < 10; ++i) world.all_reduce(at::zeros({100000}));
  std::exit(0);
}

/// Rank 0 ends with the exit code TEST_EXIT_CODE; the others go on until the file TEST_GO is there.
TEST(Ending, RankZeroEndsFirst) {
  const World world = lockstep::testing::world();
  world.barrier();
  if (world.rank() == 0) {
    std::puts("rank 0 ends");
    std::fflush(stdout);
    std::exit(number("TEST_EXIT_CODE"));
  }
  while (!std::filesystem::exists(setting("TEST_GO")))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::exit(0);
}

TEST(Ending, RankOneDies) {
  const World world = lockstep::testing::world();
  world.barrier();
  if (world.rank() == 1) ::raise(SIGKILL);
  const auto wait = [&] { world.all_reduce(at::zeros({100000})); };
  if (world.backend_name() != "lockstep") return check_throws<CommError>(wait, "");
  check_throws<PeerLostError>(wait, "lost rank 1");
}

/// Rank TEST_DEAD dies in the middle of operations: the others' error names it, on whichever machine.
TEST(Ending, TheOthersNameTheDead) {
  const World world = lockstep::testing::world();
  const int dead = number("TEST_DEAD");
  world.barrier();
  const at::Tensor tensor = world.empty_shared({1000000}, at::kFloat).fill_(1);
  try {
    for (int n = 0;; ++n) {
      if (world.rank() == dead && n == 3) ::raise(SIGKILL);
      world.all_reduce(tensor);
    }
  } catch (const PeerLostError& error) {
    std::printf("PeerLostError of rank %d: %s\n", error.rank(), error.what());
  } catch (const CommError& error) {
    std::printf("CommError: %s\n", error.what());
  }
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // rank 0 serves the store
  ::_exit(0);
}

/// All ranks go on until one or a machine is lost, and say when they have noticed that.
TEST(Ending, UntilOneIsLost) {
  const World world = lockstep::testing::world();
  const at::Tensor tensor = world.empty_shared({number("TEST_COUNT")}, at::kFloat).fill_(0);
  world.barrier();
  std::printf("rank %d is ready\n", world.rank());
  std::fflush(stdout);
  try {
    while (true) world.all_reduce(tensor);
  } catch (const PeerLostError& error) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    std::printf("%.3f %d %s\n", std::chrono::duration<double>(now).count(), error.rank(), error.what());
  }
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // rank 0 serves the store
  ::_exit(0);
}

/// Rank TEST_DEAD does not come: the others' error names it, or the ranks of its machine.
TEST(Ending, TheOthersNameTheLate) {
  const World world = lockstep::testing::world();
  world.barrier();
  if (world.rank() == number("TEST_DEAD")) {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    ::_exit(0);
  }
  try {
    world.all_reduce(at::zeros({10}), {.timeout = std::chrono::milliseconds(700)});
  } catch (const TimeoutError& error) {
    std::printf("TimeoutError of");
    for (const int rank : error.missing_ranks()) std::printf(" rank %d", rank);
    std::printf(": %s\n", error.what());
  }
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::seconds(3));  // rank 0 serves the store
  ::_exit(0);
}

/// Ranks of two machines call different operations.
TEST(Ending, DifferentCalls) {
  const World world = lockstep::testing::world();
  check_throws<MismatchError>([&] { world.all_reduce(at::zeros({4 + world.group_rank()})); }, "float32[4]");
  check_throws<MismatchError>([&] { world.barrier(); }, "float32[5]");
  std::puts("MismatchError");
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  ::_exit(0);
}

}  // namespace
