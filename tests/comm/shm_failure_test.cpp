// What a rank of the shared-memory core is told when another dies, stops, leaves or calls something else.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/shm/flight_recorder.h"
#include "tests/comm/shm_collectives.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using testing::expect_all_succeed;
using testing::run_processes;

/// Ended, and not waited for by its parent yet.
bool is_zombie(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(") ");
  return name_end == std::string::npos || stat[name_end + 2] == 'Z';
}

/// What is known of the loss by which `call` ends.
PeerLoss find_loss(const std::function<void()>& call) {
  try {
    call();
  } catch (const PeerLostError& error) {
    return error.loss();
  }
  ADD_FAILURE() << "no peer was lost";
  return {};
}

TEST(ShmGroupFailureTest, AKilledRankIsNamedOnAllOthers) {
  const UniqueFd segment = create_segment(3, kArenaBytes);
  const auto statuses = run_processes(3, [&](int rank) {
    Rank self(segment.get(), rank);
    self.group.barrier(kTimeout);
    if (rank == 1) ::raise(SIGKILL);
    std::vector<float> data(100000);
    const auto start = Clock::now();
    const std::string message = message_of<PeerLostError>([&] {
      self.group.wait(self.group.start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM),
                      kTimeout);
    });
    EXPECT_LT(Clock::now() - start, 10s);
    expect_contains(message, "all_reduce #2 (float32[100000], SUM) lost rank 1 (pid ");
    expect_contains(message_of<PeerLostError>([&] { self.group.barrier(kTimeout); }), "lost rank 1");
    EXPECT_FALSE(find_loss([&] { self.group.barrier(kTimeout); }).has_left);
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  EXPECT_EQ(statuses[2], 0);
}

TEST(ShmGroupFailureTest, ADeathIsSeenWithoutADescriptorToSeeItBy) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  const auto statuses = run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank);
    self.group.barrier(kTimeout);
    if (rank == 1) ::raise(SIGKILL);
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 0;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_THROW(self.group.barrier(kTimeout), PeerLostError);
  });
  EXPECT_EQ(statuses[0], 0);
}

/// Nothing is missing from it, but the slot of what it has not ended is not free.
TEST(ShmGroupFailureTest, ARankThatDiesAfterItsArrivalIsNamedWhenSlotsRunOut) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  const auto statuses = run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank);
    if (rank == 1) {
      self.group.start_barrier();
      ::raise(SIGKILL);
    }
    while (self.node.segment().rank_info(1).operations == 0) std::this_thread::sleep_for(1ms);
    // It counts an operation before it has started it.
    while (!is_zombie(self.node.segment().rank_info(1).pid)) std::this_thread::sleep_for(1ms);
    const auto start = Clock::now();
    expect_contains(message_of<PeerLostError>([&] {
                      for (uint32_t n = 0; n < kSlots; ++n) self.group.start_barrier();
                      self.group.barrier(kTimeout);
                    }),
                    "barrier #65, which is queued behind barrier #1, lost rank 1 (pid ");
    EXPECT_LT(Clock::now() - start, 10s);
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(ShmGroupFailureTest, ARankThatLeavesIsNamed) {
  run_ranks(3, [&](Rank& self, int rank) {
    if (rank == 1) return;
    expect_contains(message_of<PeerLostError>([&] { self.group.barrier(kTimeout); }), "it has left the job");
    EXPECT_TRUE(find_loss([&] { self.group.barrier(kTimeout); }).has_left) << "also on the rank that is told";
  });
}

TEST(ShmGroupFailureTest, AnAbsentRankIsNamedAtTheDeadline) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  expect_all_succeed(run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank, 300ms);
    int32_t value = 1;
    if (rank == 1) {
      // Comes too late and learns what happened.
      std::this_thread::sleep_for(2s);
      expect_contains(message_of<TimeoutError>([&] { self.group.barrier(300ms); }), "rank 0 reported: ");
      return;
    }
    expect_contains(message_of<TimeoutError>([&] {
                      self.group.wait(self.group.start_all_reduce(&value, 1, DType::int32, ReduceOp::MAX),
                                      300ms);
                    }),
                    "all_reduce #1 (int32[1], MAX) waited 300 ms for rank 1 (pid ");
  }));
}

TEST(ShmGroupFailureTest, AStoppedRankIsNamedAtTheDeadline) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  const auto statuses = run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank, 500ms);
    const pid_t peer = self.node.segment().rank_info(1 - rank).pid;
    self.group.barrier(kTimeout);
    if (rank == 1) {
      ::raise(SIGSTOP);
      return;
    }
    expect_contains(message_of<TimeoutError>([&] { self.group.barrier(500ms); }), "waited 500 ms for rank 1");
    ::kill(peer, SIGKILL);
  });
  EXPECT_EQ(statuses[0], 0);
}

/// Whoever allocated it: the group need not know of the tensor's end.
TEST(ShmGroupFailureTest, MemoryThatAStoppedRankMayStillReadIsNotUsedAgain) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  const auto statuses = run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank, 300ms);
    constexpr size_t kBytes = size_t{1} << 20;
    Arena& arena = self.node.arena();
    std::byte* const data = arena.allocate(kBytes);
    std::vector<std::byte> received(2 * kBytes);
    const Copy copies[] = {{0, 0, received.data(), kBytes}, {1, 0, received.data() + kBytes, kBytes}};
    if (rank == 1) ::raise(SIGSTOP);
    EXPECT_THROW(self.group.exchange({.kind = OpKind::all_gather,
                                      .dtype = DType::uint8,
                                      .count = kBytes,
                                      .sent = data,
                                      .sent_bytes = kBytes,
                                      .copies = copies,
                                      .copy_count = 2},
                                     300ms),
                 TimeoutError);
    arena.release(data);
    EXPECT_NE(arena.allocate(kBytes), data);
    const pid_t peer = self.node.segment().rank_info(1).pid;
    ::kill(peer, SIGKILL);
    while (::kill(peer, 0) == 0 && arena.bytes_in_use() > kBytes) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(arena.allocate(kBytes), data);
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(ShmGroupFailureTest, DifferentCallsAreToldToAll) {
  run_ranks(3, [&](Rank& self, int rank) {
    std::vector<float> data(rank == 2 ? 11 : 10);
    const std::string message = message_of<MismatchError>([&] {
      self.group.wait(self.group.start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM),
                      kTimeout);
    });
    expect_contains(
        message,
        "rank 0 called all_reduce #1 (float32[10], SUM), rank 2 called all_reduce #1 (float32[11], SUM)");
  });
}

TEST(ShmGroupFailureTest, AnotherRootIsAnError) {
  run_ranks(2, [&](Rank& self, int rank) {
    float value = 0;
    expect_contains(
        message_of<MismatchError>([&] { broadcast(self.group, &value, 1, DType::float32, rank, kTimeout); }),
        "root 1");
  });
}

/// A rank dies or stops inside, or just before, an operation.
struct Fault {
  size_t collective;
  int signal;
  bool inside;  // else before it arrives
};

class FaultTest : public ::testing::TestWithParam<Fault> {};

// Until a signal has killed or stopped it.
void wait_until_gone(pid_t pid) {
  for (int n = 0; n < 10'000; ++n) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string stat;
    std::getline(file, stat);
    const size_t name_ends = stat.rfind(')');
    if (name_ends == std::string::npos ||
        std::string("ZXT").find(stat.at(name_ends + 2)) != std::string::npos)
      return;
    std::this_thread::sleep_for(1ms);
  }
  ADD_FAILURE() << "process " << pid << " is still running";
}

TEST_P(FaultTest, IsReportedOnEveryOtherRank) {
  const Fault fault = GetParam();
  const Collective& collective = collectives()[fault.collective];
  const bool stops = fault.signal == SIGSTOP;
  const std::chrono::milliseconds timeout = stops ? 300ms : 60s;
  const UniqueFd segment = create_segment(kRanks, kArenaBytes);
  // How many ranks have seen the fault, in memory of all processes.
  void* const shared =
      ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const seen = new (shared) std::atomic<int>(0);
  const auto statuses = run_processes(kRanks, [&](int rank) {
    Rank self(segment.get(), rank, timeout);
    const pid_t victim = self.node.segment().rank_info(kVictim).pid;
    for (int n = 0; n < 3; ++n) collective.call(self.group, kTimeout);
    self.group.barrier(kTimeout);
    if (rank == kVictim) {
      std::thread killer;
      if (fault.inside) {
        killer = std::thread([&] {
          std::this_thread::sleep_for(30ms);
          ::kill(victim, fault.signal);
        });
        collective.call(self.group, kTimeout);  // rank 0 is late: this one waits inside
        self.group.barrier(kTimeout);
      } else {
        ::raise(fault.signal);
      }
      killer.join();
      return;
    }
    if (rank == 0 && fault.inside) wait_until_gone(victim);
    const auto begin = Clock::now();
    const auto attempt = [&] {
      collective.call(self.group, timeout);
      // The victim may have given what this operation needed of it; it can give no more.
      self.group.barrier(timeout);
    };
    std::string message;
    try {
      attempt();
      ADD_FAILURE() << "no error";
    } catch (const PeerLostError& error) {
      EXPECT_FALSE(stops) << error.what();
      EXPECT_EQ(error.rank(), kVictim);
      message = error.what();
    } catch (const TimeoutError& error) {
      EXPECT_TRUE(stops) << error.what();
      message = error.what();
    }
    // Far from the deadline of 60 s, and generous: other processes may have the cores.
    EXPECT_LT(Clock::now() - begin, 10s);
    EXPECT_NE(message.find("rank 1 (pid " + std::to_string(victim) + ", last operation "), std::string::npos)
        << message;
    if (stops) {
      EXPECT_NE(message.find("waited 300 ms for"), std::string::npos) << message;
    }
    // The first cause is repeated.
    try {
      self.group.barrier(timeout);
      ADD_FAILURE() << "no error";
    } catch (const CommError& error) {
      EXPECT_EQ(error.what(), message);
    }
    // A stopped rank that is killed now would be a dead one for a rank that has not looked yet.
    ++*seen;
    for (int n = 0; n < 1000 && *seen < kRanks - 1; ++n) std::this_thread::sleep_for(10ms);
    ::kill(victim, SIGKILL);
    // Once the victim is gone and the other rank knows, nobody can touch what the operation had in the arena.
    for (int n = 0; n < 1000 && self.node.arena().bytes_in_use() > 0; ++n) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[kVictim]));
  EXPECT_EQ(statuses[2], 0);
  ::munmap(shared, sizeof(std::atomic<int>));
}

std::vector<Fault> all_faults() {
  std::vector<Fault> faults;
  for (size_t c = 0; c < collectives().size(); ++c) {
    for (const int signal : {SIGKILL, SIGSTOP}) {
      faults.push_back({c, signal, false});
      faults.push_back({c, signal, true});
    }
  }
  return faults;
}

INSTANTIATE_TEST_SUITE_P(Every, FaultTest, ::testing::ValuesIn(all_faults()), [](const auto& info) {
  return std::string(collectives()[info.param.collective].name) +
         (info.param.signal == SIGKILL ? "_killed" : "_stopped") +
         (info.param.inside ? "_inside" : "_before");
});

TEST(FlightRecorderTest, KeepsTheLastOperationsOfEachRank) {
  run_ranks(2, [&](Rank& self, int /*rank*/) {
    std::vector<float> data(1000);
    for (int n = 0; n < 50; ++n) self.group.barrier(kTimeout);
    self.group.wait(self.group.start_all_reduce(data.data(), 1000, DType::float32, ReduceOp::AVG), kTimeout);
    broadcast(self.group, data.data(), 10, DType::bfloat16, 1, kTimeout);
    self.group.barrier(kTimeout);
    for (int other = 0; other < 2; ++other) {
      const std::string report = flight_report(self.node.segment(), other, 3);
      expect_contains(report, "all_reduce #51 (float32[1000], AVG), done");
      expect_contains(report, "; broadcast #52 (bfloat16[10], root 1), done");
      expect_contains(report, "; barrier #53");
      EXPECT_EQ(report.find("barrier #50"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace lockstep::shm
