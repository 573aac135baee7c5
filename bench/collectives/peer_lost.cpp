// `lockstep bench peer-lost`: kills a rank inside an all-reduce and times how long the others take to say so.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <thread>

#include "bench/collectives/busy.h"
#include "bench/collectives/collective.h"
#include "lockstep/base/error.h"
#include "lockstep/shm/group/group.h"
#include "lockstep/shm/node.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct PeerLostOptions {
  int nproc_per_node = 0;
  std::vector<std::string> sizes;
  int trials = 0;
};

constexpr auto kPeerLostFlags = std::to_array<Flag<PeerLostOptions>>({
    {.name = "nproc-per-node",
     .member = &PeerLostOptions::nproc_per_node,
     .preset = "4",
     .check = FlagCheck::between(2, 256),
     .words = "Ranks, which this command starts itself"},
    {.name = "sizes",
     .member = &PeerLostOptions::sizes,
     .preset = "64,25M",
     .words = "Bytes, with commas between: 64,25M (powers of 1024)",
     .has_commas = true},
    {.name = "trials",
     .member = &PeerLostOptions::trials,
     .preset = "10",
     .check = FlagCheck::between(1, 10000),
     .words = "How often a rank is killed at each size"},
});

constexpr milliseconds kDeadline = std::chrono::seconds(30);
constexpr uint32_t kCallsBefore = 20;

/// What the ranks of a trial tell the benchmark.
struct Board {
  struct alignas(64) Place {
    std::atomic<uint32_t> calls;
    std::atomic<int64_t> noticed;  ///< by the steady clock, which all processes share; -1: ended otherwise
  };
  std::array<Place, shm::kMaxRanks> ranks;
};

int64_t now() { return Clock::now().time_since_epoch().count(); }

/// A rank: all-reduces until the victim is reported lost.
void run_rank(int segment, int rank, int victim, size_t bytes, Board& board) {
  Board::Place& place = board.ranks.at(static_cast<size_t>(rank));
  shm::Node node(segment, rank);
  std::vector<int> everyone(static_cast<size_t>(node.segment().ranks()));
  std::iota(everyone.begin(), everyone.end(), 0);
  shm::Group group(node, 0, everyone, rank, kDeadline);
  node.wait_for_all(kDeadline);
  std::byte* const data = node.arena().allocate(bytes);
  std::memset(data, 0, bytes);
  try {
    while (true) {
      group.wait(group.start_all_reduce(data, bytes / sizeof(float), shm::DType::float32, ReduceOp::SUM),
                 kDeadline);
      place.calls.fetch_add(1, std::memory_order_relaxed);
    }
  } catch (const PeerLostError& error) {
    place.noticed.store(error.rank() == victim ? now() : -1, std::memory_order_relaxed);
  }
}

/// Ends whatever a trial has started, however it goes.
struct Children {
  ~Children() {
    for (const pid_t pid : pids) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    wait();
  }
  void wait() {
    for (pid_t& pid : pids) {
      if (pid > 0) ::waitpid(pid, nullptr, 0);
      pid = -1;
    }
  }
  std::vector<pid_t> pids;
};

/// Seconds from the kill to the error, of each other rank.
std::vector<double> run_trial(const PeerLostOptions& options, size_t bytes, int trial, Board& board) {
  const int ranks = options.nproc_per_node;
  const int victim = trial % ranks;
  for (auto& place : board.ranks) {
    place.calls.store(0, std::memory_order_relaxed);
    place.noticed.store(0, std::memory_order_relaxed);
  }
  const UniqueFd segment = shm::create_segment(ranks);
  Children children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) throw Error(fmt::format("benchmark: cannot start a process: {}", std::strerror(errno)));
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      // What a failing rank says is known here.
      if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(1);
      try {
        run_rank(segment.get(), rank, victim, bytes, board);
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    children.pids.push_back(pid);
  }
  const auto deadline = Clock::now() + kDeadline;
  const auto all_work = [&] {
    return std::all_of(board.ranks.begin(), board.ranks.begin() + ranks,
                       [](const auto& place) { return place.calls.load() >= kCallsBefore; });
  };
  while (!all_work()) {
    if (Clock::now() > deadline) throw Error("benchmark: the ranks have not begun to work");
    std::this_thread::sleep_for(milliseconds(1));
  }
  const int64_t killed = now();
  ::kill(children.pids[static_cast<size_t>(victim)], SIGKILL);
  children.wait();
  std::vector<double> seconds;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == victim) continue;
    const int64_t noticed = board.ranks[static_cast<size_t>(rank)].noticed.load();
    if (noticed <= 0) {
      throw Error(fmt::format("benchmark: rank {} did not report that rank {} was lost", rank, victim));
    }
    seconds.push_back(std::chrono::duration<double>(Clock::duration(noticed - killed)).count());
  }
  return seconds;
}

int run(const PeerLostOptions& options) {
  bench::warn_if_busy();
  void* const memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw Error("benchmark: cannot map memory to share with the ranks");
  Board& board = *new (memory) Board{};
  fmt::print("kill -9 of a rank inside an all-reduce, {} ranks, {} trials: milliseconds to PeerLostError\n",
             options.nproc_per_node, options.trials);
  for (const auto& text : options.sizes) {
    const size_t bytes = std::max(bench::parse_size(text) / sizeof(float), size_t{1}) * sizeof(float);
    std::vector<double> all;
    for (int trial = 0; trial < options.trials; ++trial) {
      const auto seconds = run_trial(options, bytes, trial, board);
      all.insert(all.end(), seconds.begin(), seconds.end());
    }
    fmt::print("{:>9}  median {:.1f} (min {:.1f}, max {:.1f}), {} measurements\n", bench::size_text(bytes),
               bench::quantile(all, 0.5) * 1e3, bench::quantile(all, 0) * 1e3, bench::quantile(all, 1) * 1e3,
               all.size());
  }
  ::munmap(memory, sizeof(Board));
  return 0;
}

}  // namespace

void add_bench_peer_lost(CommandLine bench, Action& action) {
  auto options = std::make_shared<PeerLostOptions>();
  auto command = bench.add_subcommand(
      "peer-lost", "Kills a rank inside an all-reduce and times how long the others take to report it");
  command.add_example("One of 4 ranks dies", "lockstep bench peer-lost --nproc-per-node 4");
  command.add_table<PeerLostOptions>(kPeerLostFlags, *options);
  command.callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace lockstep::tools
