// Ranks started by spawn(), checked from the process that starts them.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/spawn.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using nlohmann::json;

namespace {

void sum(int rank, const json& arguments) {
  const World world = init();
  CHECK_TRUE(world.rank() == rank);
  CHECK_TRUE(world.size() == arguments.at("ranks"));
  const at::Tensor tensor = at::full({100000}, rank + 1.0);
  world.all_reduce(tensor);
  CHECK_EACH(tensor, world.size() * (world.size() + 1) / 2);
  // Neither the task nor the segment is handed on to what a rank starts.
  CHECK_TRUE(!env::get("LOCKSTEP_SPAWN_TASK"));
  CHECK_TRUE(!env::get("LOCKSTEP_SEGMENT_FD"));
}
const Spawnable kSum("sum", sum);

void fail(int rank, const json& arguments) {
  const World world = init();
  world.barrier();
  if (rank == arguments.at("who")) {
    if (arguments.at("how") == "throw") throw std::runtime_error("rank one had enough");
    if (arguments.at("how") == "kill") ::raise(SIGKILL);
    ::_exit(7);
  }
  world.barrier();
}
const Spawnable kFail("fail", fail);

void sleep_long(int, const json&) { std::this_thread::sleep_for(std::chrono::seconds(60)); }
const Spawnable kSleep("sleep", sleep_long);

TEST(Spawn, EndsWell) {
  // Threads of OpenMP and others exist already: a fork without exec would inherit their locks.
  at::parallel_for(0, 1000, 1, [](int64_t, int64_t) {});
  std::thread other([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  spawn(kSum, 3, {{"ranks", 3}});
  spawn(kSum, 1,
        {{"ranks", 1}, {"ballast", std::string(1 << 20, 'x')}});  // larger than an environment may be
  other.join();
}

TEST(Spawn, GlooWorksToo) {
  env::set("LOCKSTEP_BACKEND", "gloo");
  spawn(kSum, 2, {{"ranks", 2}});
}

TEST(Spawn, Failures) {
  const auto check = [](const char* how, const std::string& part) {
    try {
      spawn(kFail, 3, {{"who", 1}, {"how", how}});
    } catch (const SpawnError& error) {
      CHECK_TRUE(error.rank() == 1);
      CHECK_TRUE(std::string(error.what()).find(part) != std::string::npos);
      return;
    }
    throw std::runtime_error(std::string(how) + ": no error");
  };
  check("throw", "failed: rank one had enough");
  check("kill", "was killed by SIGKILL");
  check("exit", "ended with exit code 7");
  lockstep::testing::check_throws<ValueError>([] { spawn(kSum, 0); }, "1 to 256 ranks");
}

void sum_of_ranks_of_its_own(int rank, const json& arguments) {
  const World world = init();
  if (rank == 0) spawn(kSum, 2, {{"ranks", 2}});
  const at::Tensor tensor = at::full({3}, 1.0);
  world.all_reduce(tensor);
  CHECK_EACH(tensor, world.size());
  if (arguments.at("fails") == true && rank == 0) spawn(kFail, 2, {{"who", 1}, {"how", "exit"}});
}
const Spawnable kNested("sum_of_ranks_of_its_own", sum_of_ranks_of_its_own);

TEST(Spawn, Nested) {
  spawn(kNested, 2, {{"fails", false}});
  lockstep::testing::check_throws<SpawnError>(
      [] {
        spawn(kNested, 2, {{"fails", true}});
      },
      "failed: rank 1 (pid");
}

void refuse_to_end(int rank, const json&) {
  const World world = init();
  std::signal(SIGTERM, SIG_IGN);
  world.barrier();
  if (rank == 1) throw std::runtime_error("rank one had enough");
  std::this_thread::sleep_for(std::chrono::seconds(60));
}
const Spawnable kRefuseToEnd("refuse_to_end", refuse_to_end);

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

TEST(Spawn, JoinedTwice) {
  SpawnContext good = start_processes(kSum, 2, {{"ranks", 2}});
  CHECK_TRUE(good.join());
  CHECK_TRUE(good.join());
  SpawnContext bad = start_processes(kRefuseToEnd, 2, {}, {.grace = std::chrono::milliseconds(100)});
  for (int n = 0; n < 2; ++n) {
    lockstep::testing::check_throws<SpawnError>([&] { bad.join(std::chrono::seconds(30)); },
                                                "failed: rank one had enough");
  }
  CHECK_TRUE(!has_children());  // no zombie either
}

TEST(Spawn, LostStatus) {
  std::signal(SIGCHLD, SIG_IGN);
  lockstep::testing::check_throws<Error>([] { spawn(kSum, 1, {{"ranks", 1}}); }, "ignores SIGCHLD");
  std::signal(SIGCHLD, SIG_DFL);
  SpawnContext context = start_processes(kSum, 1, {{"ranks", 1}});
  ::waitpid(-1, nullptr, 0);
  lockstep::testing::check_throws<SpawnError>([&] { context.join(); }, "took its exit status");
}

TEST(Spawn, Contexts) {
  std::vector<pid_t> pids;
  {
    SpawnContext context = start_processes(kSleep, 2, {});
    pids = context.pids();
    CHECK_TRUE(!context.join(std::chrono::milliseconds(200)));
  }
  for (const pid_t pid : pids) CHECK_TRUE(::kill(pid, 0) != 0);  // killed and reaped
}

void sleep_in_job(int rank, const json& arguments) {
  const World world = init();
  const at::Tensor shared = world.empty_shared({1000000}, at::kFloat).zero_();
  world.all_reduce(shared);
  if (rank == 0) std::ofstream(arguments.at("ready").get<std::string>()) << "1";
  world.barrier();
  std::this_thread::sleep_for(std::chrono::seconds(60));
}
const Spawnable kSleepInJob("sleep_in_job", sleep_in_job);

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    names.insert(entry.path().filename());
  return names;
}

/// kill -9 of all ranks at once: nothing in /dev/shm, then or before.
TEST(Spawn, LeavesNothing) {
  const auto before = shared_files();
  const std::string ready =
      std::filesystem::temp_directory_path() / ("lockstep-ready-" + std::to_string(::getpid()));
  {
    SpawnContext context = start_processes(kSleepInJob, 2, {{"ready", ready}});
    for (int n = 0; n < 1000 && !std::filesystem::exists(ready); ++n) {
      CHECK_TRUE(!context.join(std::chrono::milliseconds(20)));
    }
    CHECK_TRUE(std::filesystem::remove(ready));
    for (const pid_t pid : context.pids()) ::kill(pid, SIGKILL);
    lockstep::testing::check_throws<SpawnError>([&] { context.join(); }, "was killed by SIGKILL");
  }
  for (const std::string& name : shared_files()) {
    if (name.find("lockstep") != std::string::npos) CHECK_TRUE(before.count(name) == 1);
  }
}

}  // namespace
