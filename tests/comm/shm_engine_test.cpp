// What the groups and the threads of one process are to each other: none may keep another from going on.
#include <gtest/gtest.h>

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <list>
#include <new>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using testing::expect_all_succeed;
using testing::run_processes;
using testing::run_threads;
using Message = PointToPoint::Request;

constexpr size_t kLargeCount = 200000;  // passes through windows

Message message(bool is_send, int peer, uint64_t tag, std::vector<float>& data) {
  return {.is_send = is_send,
          .peer = peer,
          .tag = tag,
          .data = reinterpret_cast<std::byte*>(data.data()),
          .bytes = data.size() * sizeof(float)};
}

void pass(Group& group, Message request) {
  group.start(request);
  group.wait(request, kTimeout);
}

class EngineTest : public ::testing::TestWithParam<int> {
 protected:
  EngineTest() : segment_(create_segment(GetParam(), kArenaBytes)) {}
  /// What a rank does must wake those who wait for it: none looks by itself.
  void as_processes(const std::function<void(Rank&)>& body) {
    expect_all_succeed(run_processes(GetParam(), [&](int rank) {
      Rank self(segment_.get(), rank);
      {
        const Engine::Lock lock(self.node.engine().mutex());
        self.node.engine().look_at_peers_every(1h);
      }
      body(self);
      self.group.barrier(kTimeout);
    }));
  }
  UniqueFd segment_;
};

/// Each rank waits in another group first, while its part of the other operation is missing.
TEST_P(EngineTest, AWaitInOneGroupAdvancesTheOthers) {
  as_processes([](Rank& self) {
    const auto first = another_group(self), second = another_group(self);
    for (int round = 0; round < 20; ++round) {
      std::vector<float> data(kLargeCount, 1.0F), sent(kLargeCount, 3.0F), received(kLargeCount);
      const auto sequence = first->start_all_reduce(data.data(), kLargeCount, DType::float32, ReduceOp::SUM);
      const int next = (self.group.rank() + 1) % self.group.size();
      const int previous = (self.group.rank() + self.group.size() - 1) % self.group.size();
      Message sending = message(true, next, 1, sent), receiving = message(false, previous, 1, received);
      first->start(sending);
      first->start(receiving);
      if (self.group.rank() % 2 == 0) second->barrier(kTimeout);
      first->wait(sequence, kTimeout);
      first->wait(receiving, kTimeout);
      first->wait(sending, kTimeout);
      if (self.group.rank() % 2 != 0) second->barrier(kTimeout);
      EXPECT_EQ(data.front(), static_cast<float>(self.group.size()));
      EXPECT_EQ(data.back(), static_cast<float>(self.group.size()));
      EXPECT_EQ(received.back(), 3.0F);
    }
  });
}

/// The others run as far ahead as there are slots, and sleep until the late one has consumed what is in them.
TEST_P(EngineTest, ALateRankWakesThoseThatWaitForSlots) {
  as_processes([](Rank& self) {
    constexpr int kOperations = 5 * kSlots;
    for (const size_t count : {size_t{4}, size_t{1000}}) {
      std::vector<std::vector<float>> data(kOperations, std::vector<float>(count, 1.0F));
      if (self.group.rank() == self.group.size() - 1) std::this_thread::sleep_for(20ms);
      std::vector<Group::Sequence> started;
      for (auto& buffer : data) {
        started.push_back(self.group.start_all_reduce(buffer.data(), count, DType::float32, ReduceOp::SUM));
      }
      for (const auto sequence : started) self.group.wait(sequence, kTimeout);
      for (const auto& buffer : data) ASSERT_EQ(buffer.back(), static_cast<float>(self.group.size()));
    }
  });
}

void send_and_receive_by_threads(Group& group, size_t count, int messages) {
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  run_threads(2, [&](int thread) {
    std::vector<float> data(count);
    for (int i = 0; i < messages; ++i) {
      if (thread == 0) std::fill(data.begin(), data.end(), static_cast<float>(i));
      pass(group, message(thread == 0, thread == 0 ? next : previous, 7, data));
      ASSERT_EQ(data.front(), static_cast<float>(i));
      ASSERT_EQ(data.back(), static_cast<float>(i));
    }
  });
}

/// Messages in both directions and collectives, each by a thread of its own.
void many_threads(Group& messages, Group& collectives, int rounds) {
  run_threads(2, [&](int thread) {
    if (thread == 0) {
      for (const size_t count : {size_t{4}, size_t{1000}, kLargeCount}) {
        send_and_receive_by_threads(messages, count, count == kLargeCount ? rounds / 10 : rounds);
      }
      return;
    }
    for (int i = 0; i < rounds; ++i) {
      std::vector<float> data(i % 10 == 0 ? kLargeCount : size_t{100}, 1.0F);
      collectives.all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM, kTimeout);
      ASSERT_EQ(data.back(), static_cast<float>(collectives.size()));
    }
  });
}

TEST_P(EngineTest, ThreadsShareAGroup) {
  as_processes([](Rank& self) {
    const auto other = another_group(self);
    many_threads(self.group, *other, 200);
  });
}

/// For the thread sanitizer.
TEST_P(EngineTest, RanksAsThreads) {
  const auto shared = std::make_shared<const Segment>(Segment::map(segment_.get()));
  run_threads(GetParam(), [&](int rank) {
    Rank self(shared, rank);
    const auto other = another_group(self);
    many_threads(self.group, *other, 20);
  });
}

/// What the sender of a large broadcast still has to do, it does while it calls nothing: it comes back only
/// once all have received.
TEST_P(EngineTest, AProgressThreadServesWhileItsRankComputes) {
  constexpr size_t kCount = size_t{4} << 20;
  struct Shared {
    std::atomic<int> received, done;
  };
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shared = *new (memory) Shared{};
  as_processes([&](Rank& self) {
    self.node.engine().start_progress_thread();
    EXPECT_TRUE(self.node.engine().has_progress_thread());
    std::vector<float> data(kCount, self.group.rank() == 0 ? 7.0F : 0.0F);
    const size_t bytes = data.size() * sizeof(float);
    const bool is_root = self.group.rank() == 0;
    const Copy copy{0, 0, data.data(), bytes};
    const auto sequence = self.group.start_exchange({.kind = OpKind::broadcast,
                                                     .dtype = DType::float32,
                                                     .count = kCount,
                                                     .sent = data.data(),
                                                     .sent_bytes = is_root ? bytes : 0,
                                                     .copies = &copy,
                                                     .copy_count = is_root ? 0U : 1U});
    std::atomic<bool> looked{false};
    self.node.engine().watch([&] {
      if (!self.group.look(sequence, 0ms, kTimeout)) return false;
      looked = true;
      return true;
    });
    const auto deadline = Clock::now() + kTimeout;
    if (!is_root) {
      self.group.wait(sequence, kTimeout);
      ++shared.received;
    }
    while (is_root && shared.received < GetParam() - 1 && Clock::now() < deadline) ::usleep(1000);
    while (!looked && Clock::now() < deadline) ::usleep(1000);
    if (is_root) {
      EXPECT_EQ(shared.received, GetParam() - 1);
    }
    EXPECT_TRUE(looked);
    EXPECT_EQ(data.back(), 7.0F);
    // Until the others no longer need this rank's calls.
    ++shared.done;
    while (shared.done < GetParam() && Clock::now() < deadline) ::usleep(1000);
  });
  ::munmap(memory, sizeof(Shared));
}

/// It goes with the last rank of its process, and a later one starts another.
TEST(ProgressThreadTest, EndsWithItsRank) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  std::thread([] {}).join();  // with the first thread a sanitizer starts one of its own
  const auto before = threads();
  for (int round = 0; round < 3; ++round) {
    const UniqueFd segment = create_segment(1, kArenaBytes);
    Rank self(segment.get(), 0);
    self.node.engine().start_progress_thread();
    self.node.engine().start_progress_thread();
    self.group.barrier(kTimeout);
    ::usleep(round * 30000);  // also while the thread of the round before has not seen its end
  }
  const auto deadline = Clock::now() + kTimeout;
  while (threads() > before && Clock::now() < deadline) ::usleep(1000);
  EXPECT_LE(threads(), before);
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineTest, ::testing::Values(1, 2, 4),
                         [](const auto& info) { return std::to_string(info.param); });

/// Many more than a channel holds, received in the other order, while collectives and other tags go on.
TEST(UnexpectedMessagesTest, DoNotStandInTheWayOfOthers) {
  run_ranks(2, [&](Rank& self, int rank) {
    constexpr int kMessages = 5 * kChannelDepth;
    const auto tag_of = [](int i) { return 100 + static_cast<uint64_t>(i); };
    const auto size_of = [](int i) { return i % 3 == 0 ? size_t{2000} : static_cast<size_t>(i % 24); };
    std::list<std::vector<float>> data;
    std::list<Message> requests;
    if (rank == 0) {
      for (int i = 0; i < kMessages; ++i) {
        data.emplace_back(size_of(i), static_cast<float>(i));
        self.group.start(requests.emplace_back(message(true, 1, tag_of(i), data.back())));
      }
    }
    std::vector<float> other(10, 5.0F);
    pass(self.group, message(rank == 0, 1 - rank, 9, other));
    self.group.barrier(kTimeout);
    for (Message& request : requests) self.group.wait(request, kTimeout);
    self.group.barrier(kTimeout);
    for (int i = kMessages - 1; i >= 0 && rank == 1; --i) {
      std::vector<float> received(size_of(i), -1.0F);
      pass(self.group, message(false, 0, tag_of(i), received));
      EXPECT_EQ(received, std::vector<float>(size_of(i), static_cast<float>(i)));
    }
    self.group.barrier(kTimeout);
  });
}

/// While the receiver waits in a collective, which its peer reaches only after the sends.
TEST(UnexpectedMessagesTest, AreTakenNoteOfInACollective) {
  run_ranks(2, [&](Rank& self, int rank) {
    std::vector<float> value(4, 2.0F);
    constexpr int kMessages = 3 * kChannelDepth;
    for (int i = 0; i < kMessages && rank == 0; ++i) pass(self.group, message(true, 1, 3, value));
    self.group.barrier(kTimeout);
    for (int i = 0; i < kMessages && rank == 1; ++i) pass(self.group, message(false, 0, 3, value));
    self.group.barrier(kTimeout);
  });
}

TEST(LeavingTest, IsToldAlsoWithAnOperationInFlight) {
  run_ranks(2, [&](Rank& self, int rank) {
    const auto group = another_group(self);
    float value = 1;
    if (rank == 0) {
      const auto sequence = group->start_all_reduce(&value, 1, DType::float32, ReduceOp::SUM);
      self.group.barrier(kTimeout);
      group->leave();
      EXPECT_THROW(group->barrier(kTimeout), lockstep::Error);
      EXPECT_NO_THROW(static_cast<void>(group->has_ended(sequence)));
    } else {
      group->all_reduce(&value, 1, DType::float32, ReduceOp::SUM, kTimeout);
      self.group.barrier(kTimeout);
      EXPECT_THROW(group->barrier(kTimeout), PeerLostError);
    }
    self.group.barrier(kTimeout);
  });
}

TEST(LeavingTest, EndsTheWaitsOfOtherThreads) {
  run_ranks(2, [&](Rank& self, int rank) {
    auto group = another_group(self);
    if (rank == 0) {
      std::string text;
      std::thread waiter([&] {
        try {
          group->barrier(kTimeout);
        } catch (const lockstep::Error& error) {
          text = error.what();
        }
      });
      std::this_thread::sleep_for(100ms);
      group->leave();
      waiter.join();
      EXPECT_NE(text.find("was destroyed before the operation had ended"), std::string::npos) << text;
    }
    self.group.barrier(kTimeout);
  });
}

TEST(LeavingTest, AClosedGroupEndsWhatIsInFlight) {
  run_ranks(2, [&](Rank& self, int rank) {
    const auto group = another_group(self);
    std::vector<float> data(kLargeCount, 1.0F);
    const auto sequence = group->start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM);
    if (rank == 0) group->close();
    self.group.barrier(kTimeout);
    group->wait(sequence, kTimeout);
    EXPECT_EQ(data.back(), 2.0F);
    if (rank == 1) {
      EXPECT_THROW(group->barrier(kTimeout), PeerLostError);
    }
    self.group.barrier(kTimeout);
  });
}

TEST(ShortWaitTest, LeavesTheGroupAsItIs) {
  run_ranks(2, [&](Rank& self, int rank) {
    std::vector<float> data(kLargeCount, 1.0F), received(4);
    if (rank == 0) {
      const auto sequence =
          self.group.start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM);
      Message receive = message(false, 1, 0, received);
      self.group.start(receive);
      EXPECT_THROW(self.group.wait(sequence, 20ms, AfterTimeout::unchanged), TimeoutError);
      EXPECT_THROW(self.group.wait(receive, 20ms, AfterTimeout::unchanged), TimeoutError);
      self.node.segment().rank_record(0).last_bytes.store(1);  // tells rank 1 to come
      self.group.wait(sequence, kTimeout);
      self.group.wait(receive, kTimeout);
      EXPECT_EQ(received.front(), 2.0F);
    } else {
      while (self.node.segment().rank_record(0).last_bytes.load() != 1) std::this_thread::sleep_for(1ms);
      self.group.all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM, kTimeout);
      std::vector<float> sent(4, 2.0F);
      pass(self.group, message(true, 0, 0, sent));
    }
    EXPECT_EQ(data.back(), 2.0F);
    self.group.barrier(kTimeout);
  });
}

/// Its end, which its peers would take for that of the rank whose place it wanted.
TEST(JoiningTest, WhoIsRefusedLeavesNoTrace) {
  const UniqueFd segment = create_segment(2, kArenaBytes);
  const Node node(segment.get(), 1);
  const int refused = ::fork();
  if (refused == 0) {
    int code = 1;
    try {
      const Node other(segment.get(), 1);
    } catch (const ValueError&) {
      code = 0;
    }
    ::_exit(code);
  }
  int status = 1;
  ::waitpid(refused, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(node.segment().rank_info(1).pid, ::getpid());
  EXPECT_EQ(node.segment().rank_info(1).state, RankState::attached);
}

/// In another PID namespace a number is that of another process, or of none.
TEST(PeersTest, WhoLivesInAnotherPidNamespaceIsNotTakenForDead) {
  const UniqueFd fd = create_segment(2, kArenaBytes);
  const int child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const Segment segment = Segment::map(fd.get());
  RankRecord& record = segment.rank_record(1);
  record.pid.store(child);
  record.pid_namespace.store(pid_namespace());
  record.state.store(static_cast<uint32_t>(RankState::attached));
  EXPECT_TRUE(Peers(segment).find_ending(1));
  record.pid_namespace.store(pid_namespace() + 1);
  EXPECT_FALSE(Peers(segment).find_ending(1));
  segment.mark_exited(1, 0);
  EXPECT_TRUE(Peers(segment).find_ending(1));
}

/// Ranks in containers of their own, on one machine: neither sees the other's process. Rank 1 is late and
/// idle for longer than a look at the peers takes, and its end without a word is a matter of the deadline.
TEST(PeersTest, RanksInDifferentPidNamespaces) {
  // Who is not root needs a user namespace around it.
  const int kinds = ::geteuid() == 0 ? CLONE_NEWPID : CLONE_NEWUSER | CLONE_NEWPID;
  const int probe = ::fork();
  if (probe == 0) ::_exit(::unshare(kinds) == 0 ? 0 : errno);
  int refused = 0;
  ::waitpid(probe, &refused, 0);
  if (refused != 0) GTEST_SKIP() << "no PID namespace can be made: " << std::strerror(WEXITSTATUS(refused));
  const UniqueFd segment = create_segment(2, kArenaBytes);
  const auto body = [&](int rank) {
    Rank self(segment.get(), rank);
    {
      const Engine::Lock lock(self.node.engine().mutex());
      self.node.engine().look_at_peers_every(5ms);
    }
    ASSERT_NE(self.node.segment().rank_info(0).pid_namespace, self.node.segment().rank_info(1).pid_namespace);
    for (const size_t count : {size_t{10}, kLargeCount}) {
      if (rank == 1) std::this_thread::sleep_for(200ms);
      std::vector<float> data(count, 1.0F);
      self.group.all_reduce(data.data(), count, DType::float32, ReduceOp::SUM, kTimeout);
      ASSERT_EQ(data.back(), 2.0F);
    }
    self.group.barrier(kTimeout);
    if (rank == 1) ::_exit(0);  // without leaving
    EXPECT_THROW(self.group.barrier(300ms), TimeoutError);
  };
  expect_all_succeed(run_processes(2, [&](int rank) {
    ASSERT_EQ(::unshare(kinds), 0);
    // The namespace ends with its first process. The numbers in it, 2 and 3, are such as the other lacks.
    expect_all_succeed(run_processes(1, [&](int) {
      expect_all_succeed(run_processes(1 + rank, [&](int n) {
        if (n == rank) body(rank);
      }));
    }));
  }));
}

}  // namespace
}  // namespace lockstep::shm
