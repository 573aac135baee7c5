// What a rank of the shared-memory core is told when another dies, stops, leaves or calls something else.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/shm/areas.h"
#include "lockstep/shm/flight_recorder.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using testing::expect_all_succeed;
using testing::run_processes;

template <class Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks\n" << part;
}

/// Ended, and not waited for by its parent yet.
bool is_zombie(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(") ");
  return name_end == std::string::npos || stat[name_end + 2] == 'Z';
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
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  EXPECT_EQ(statuses[2], 0);
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
                      for (uint32_t n = 0; n <= kSlots; ++n) self.group.start_barrier();
                    }),
                    "barrier #1 lost rank 1 (pid ");
    EXPECT_LT(Clock::now() - start, 10s);
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(ShmGroupFailureTest, ARankThatLeavesIsNamed) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  expect_all_succeed(run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank);
    if (rank == 1) return;
    expect_contains(message_of<PeerLostError>([&] { self.group.barrier(kTimeout); }), "it has left the job");
  }));
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
  const UniqueFd segment = create_segment(3, kArenaBytes);
  expect_all_succeed(run_processes(3, [&](int rank) {
    Rank self(segment.get(), rank);
    std::vector<float> data(rank == 2 ? 11 : 10);
    const std::string message = message_of<MismatchError>([&] {
      self.group.wait(self.group.start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM),
                      kTimeout);
    });
    expect_contains(
        message,
        "rank 0 called all_reduce #1 (float32[10], SUM), rank 2 called all_reduce #1 (float32[11], SUM)");
  }));
}

TEST(ShmGroupFailureTest, AnotherRootIsAnError) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  expect_all_succeed(run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank);
    float value = 0;
    expect_contains(
        message_of<MismatchError>([&] { self.group.broadcast(&value, 1, DType::float32, rank, kTimeout); }),
        "root 1");
  }));
}

// --- a rank that dies or stops inside, or just before, each operation

struct Collective {
  const char* name;
  std::function<void(Group&, std::chrono::milliseconds)> call;
};

constexpr size_t kLarge = 100000;  // in place; the small ones travel by copy
constexpr int kVictim = 1, kRanks = 3;

std::vector<Group::Copy> parts_of_all(std::vector<float>& into, size_t count) {
  std::vector<Group::Copy> copies;
  for (size_t r = 0; r < kRanks; ++r) {
    copies.push_back({static_cast<int>(r), 0, into.data() + r * count, count * sizeof(float)});
  }
  return copies;
}

void exchange(Group& group, OpKind kind, bool sends, bool receives, int root,
              std::chrono::milliseconds timeout) {
  std::vector<float> sent(kLarge), received(kRanks * kLarge);
  const auto copies = parts_of_all(received, kLarge);
  const bool from_root = kind == OpKind::broadcast || kind == OpKind::scatter;
  group.exchange({.kind = kind,
                  .dtype = DType::float32,
                  .count = kLarge,
                  .root = root,
                  .sent = sent.data(),
                  .sent_bytes = sends ? kLarge * sizeof(float) : 0,
                  .copies = from_root ? &copies[static_cast<size_t>(root)] : copies.data(),
                  .copy_count = !receives   ? size_t{0}
                                : from_root ? size_t{1}
                                            : copies.size()},
                 timeout);
}

void reduce_of(Group& group, size_t count, std::chrono::milliseconds timeout) {
  std::vector<float> data(count, 1.0F);
  group.wait(group.start_all_reduce(data.data(), count, DType::float32, ReduceOp::SUM), timeout);
}

const std::vector<Collective>& collectives() {
  using ms = std::chrono::milliseconds;
  static const std::vector<Collective> all{
      {"barrier", [](Group& g, ms t) { g.barrier(t); }},
      {"all_reduce_inline", [](Group& g, ms t) { reduce_of(g, 4, t); }},
      {"all_reduce_staged", [](Group& g, ms t) { reduce_of(g, 1000, t); }},
      {"all_reduce", [](Group& g, ms t) { reduce_of(g, kLarge, t); }},
      {"reduce",
       [](Group& g, ms t) {
         std::vector<float> data(kLarge);
         g.reduce(data.data(), kLarge, DType::float32, ReduceOp::MAX, 0, t);
       }},
      {"reduce_scatter",
       [](Group& g, ms t) {
         std::vector<float> input(kRanks * kLarge), output(kLarge);
         g.reduce_scatter(input.data(), output.data(), kLarge, DType::float32, ReduceOp::SUM, t);
       }},
      {"broadcast_from_victim",
       [](Group& g, ms t) {
         exchange(g, OpKind::broadcast, g.rank() == kVictim, g.rank() != kVictim, kVictim, t);
       }},
      {"broadcast_to_victim",
       [](Group& g, ms t) { exchange(g, OpKind::broadcast, g.rank() == 0, g.rank() != 0, 0, t); }},
      {"scatter", [](Group& g, ms t) { exchange(g, OpKind::scatter, g.rank() == 0, true, 0, t); }},
      {"gather", [](Group& g, ms t) { exchange(g, OpKind::gather, true, g.rank() == 0, 0, t); }},
      {"gather_at_victim",
       [](Group& g, ms t) { exchange(g, OpKind::gather, true, g.rank() == kVictim, kVictim, t); }},
      {"all_gather", [](Group& g, ms t) { exchange(g, OpKind::all_gather, true, true, 0, t); }},
      {"all_to_all", [](Group& g, ms t) { exchange(g, OpKind::all_to_all, true, true, 0, t); }},
      {"send_recv",
       [](Group& g, ms t) {
         std::vector<float> data(kLarge), into(kLarge);
         const auto bytes = kLarge * sizeof(float);
         PointToPoint::Request send{.is_send = true,
                                    .peer = (g.rank() + 1) % kRanks,
                                    .tag = 4,
                                    .data = reinterpret_cast<std::byte*>(data.data()),
                                    .bytes = bytes};
         PointToPoint::Request receive{.peer = (g.rank() + 2) % kRanks,
                                       .tag = 4,
                                       .data = reinterpret_cast<std::byte*>(into.data()),
                                       .bytes = bytes};
         g.start(send);
         g.start(receive);
         g.wait(receive, t);
         g.wait(send, t);
       }},
  };
  return all;
}

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
    ::kill(victim, SIGKILL);
    // Once the victim is gone and the other rank knows, nobody can touch what the operation had in the arena.
    for (int n = 0; n < 1000 && self.node.arena().bytes_in_use() > 0; ++n) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_TRUE(WIFSIGNALED(statuses[kVictim]));
  EXPECT_EQ(statuses[2], 0);
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
  const UniqueFd segment = create_segment(2, kArenaBytes);
  expect_all_succeed(run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank);
    std::vector<float> data(1000);
    for (int n = 0; n < 50; ++n) self.group.barrier(kTimeout);
    self.group.wait(self.group.start_all_reduce(data.data(), 1000, DType::float32, ReduceOp::AVG), kTimeout);
    self.group.broadcast(data.data(), 10, DType::bfloat16, 1, kTimeout);
    self.group.barrier(kTimeout);
    for (int other = 0; other < 2; ++other) {
      const std::string report = flight_report(self.node.segment(), other, 3);
      expect_contains(report, "all_reduce #51 (float32[1000], AVG), done");
      expect_contains(report, "; broadcast #52 (bfloat16[10], root 1), done");
      expect_contains(report, "; barrier #53");
      EXPECT_EQ(report.find("barrier #50"), std::string::npos);
    }
  }));
}

// --- groups that come and go

TEST(ShmAreasTest, AreUsedAgainAndStartEmpty) {
  const UniqueFd segment = create_segment(3, kArenaBytes);
  expect_all_succeed(run_processes(3, [&](int rank) {
    Rank self(segment.get(), rank);
    for (int round = 0; round < 300; ++round) {  // each in the area that the one before has left
      int64_t area = rank == 0 ? claim_area(self.node.segment(), 2) : 0;
      self.group.broadcast(&area, 1, DType::int64, 0, kTimeout);
      if (rank == round % 3) continue;
      std::vector<int> members;
      for (int r = 0; r < 3; ++r) {
        if (r != round % 3) members.push_back(r);
      }
      Group pair(self.node, static_cast<int>(area), members, rank == members[0] ? 0 : 1, kTimeout);
      std::vector<float> data(static_cast<size_t>(round) * 40, static_cast<float>(rank));
      pair.wait(pair.start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM), kTimeout);
      for (const float value : data) ASSERT_EQ(value, static_cast<float>(members[0] + members[1]));
    }
    self.group.barrier(kTimeout);
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  }));
  // All ranks have left every group: nothing of them remains.
  const Segment mapped = Segment::map(segment.get());
  for (int area = 1; area < kMaxGroups; ++area) EXPECT_EQ(mapped.area_record(area).used.load(), 0u);
}

/// For the thread sanitizer: groups, messages, exchanges whose parts are told late, and a failure.
TEST(ShmAreasTest, RanksAsThreads) {
  constexpr int kThreads = 3;
  const UniqueFd fd = create_segment(kThreads, kArenaBytes);
  const auto shared = std::make_shared<const Segment>(Segment::map(fd.get()));
  testing::run_threads(kThreads, [&](int rank) {
    Rank self(shared, rank);
    for (int round = 0; round < 30; ++round) {
      int64_t area = rank == 0 ? claim_area(*shared, kThreads) : 0;
      self.group.broadcast(&area, 1, DType::int64, 0, kTimeout);
      Group group(self.node, static_cast<int>(area), {0, 1, 2}, rank, kTimeout);
      for (const Collective& collective : collectives()) collective.call(group, kTimeout);
      std::vector<float> sent(6000, static_cast<float>(rank)), received(kThreads * 2000);
      const std::function<std::vector<Group::Copy>()> late = [&] {
        std::vector<Group::Copy> copies;
        for (size_t r = 0; r < kThreads; ++r) {
          copies.push_back(
              {static_cast<int>(r), static_cast<size_t>(rank) * 8000, received.data() + r * 2000, 8000});
        }
        return copies;
      };
      const auto sequence = group.start_exchange({.kind = OpKind::all_to_all,
                                                  .dtype = DType::float32,
                                                  .count = 0,
                                                  .sent = sent.data(),
                                                  .sent_bytes = 24000,
                                                  .late_copies = &late});
      group.wait(sequence, kTimeout);
      for (size_t r = 0; r < kThreads; ++r) EXPECT_EQ(received[r * 2000 + 1999], static_cast<float>(r));
      if (round % 10 != 9 || rank == 1) continue;
      // Rank 1 leaves without this call.
      std::vector<float> data(kLarge);
      EXPECT_THROW(
          group.wait(group.start_all_reduce(data.data(), kLarge, DType::float32, ReduceOp::SUM), kTimeout),
          CommError);
    }
    self.group.barrier(kTimeout);
    for (int n = 0; n < 1000 && self.node.arena().bytes_in_use() > 0; ++n) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  });
}

TEST(ShmAreasTest, RunOutWithAnError) {
  const UniqueFd segment = create_segment(1, kArenaBytes);
  const Segment mapped = Segment::map(segment.get());
  for (int area = 1; area < kMaxGroups; ++area) EXPECT_EQ(claim_area(mapped, 1), area);
  expect_contains(message_of<Error>([&] { claim_area(mapped, 1); }),
                  std::to_string(kMaxGroups) + " process groups");
  leave_area(mapped, 7);
  EXPECT_EQ(claim_area(mapped, 1), 7);
}

TEST(ShmAreasTest, AMemberThatLeavesAGroupIsNamed) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  expect_all_succeed(run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank);
    int64_t area = rank == 0 ? claim_area(self.node.segment(), 2) : 0;
    self.group.broadcast(&area, 1, DType::int64, 0, kTimeout);
    {
      Group pair(self.node, static_cast<int>(area), {0, 1}, rank, kTimeout);
      if (rank == 0)
        expect_contains(message_of<PeerLostError>([&] { pair.barrier(kTimeout); }), "has left the group");
    }
    self.group.barrier(kTimeout);  // this group is as good as before
  }));
}

TEST(ShmAreasTest, AMessageMayBeReceivedAfterItsSenderHasLeft) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  expect_all_succeed(run_processes(2, [&](int rank) {
    Rank self(segment.get(), rank);
    int64_t area = rank == 0 ? claim_area(self.node.segment(), 2) : 0;
    self.group.broadcast(&area, 1, DType::int64, 0, kTimeout);
    std::vector<int64_t> data(50000, rank == 0 ? 17 : 0);
    PointToPoint::Request request{.is_send = rank == 0,
                                  .peer = 1 - rank,
                                  .data = reinterpret_cast<std::byte*>(data.data()),
                                  .bytes = data.size() * 8};
    {
      Group pair(self.node, static_cast<int>(area), {0, 1}, rank, kTimeout);
      if (rank == 1) self.group.barrier(kTimeout);  // rank 0 has left and used its arena for other things
      pair.start(request);
      pair.wait(request, kTimeout);
    }
    if (rank == 0) {
      std::memset(self.node.arena().allocate(data.size() * 8), 0xFF, data.size() * 8);
      self.group.barrier(kTimeout);
    }
    EXPECT_EQ(data, std::vector<int64_t>(50000, 17));
    self.group.barrier(kTimeout);
  }));
}

}  // namespace
}  // namespace lockstep::shm
