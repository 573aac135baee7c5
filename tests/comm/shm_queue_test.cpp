// Operations beyond a group's slots and beyond the memory of the arena: they queue, and none waits to be started.
//
// LOCKSTEP_FUZZ_SEED: the first random program's seed. LOCKSTEP_FUZZ_PROGRAMS: how many, at each number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "tests/comm/fuzz_items.h"
#include "tests/comm/shm_rank.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;
using testing::expect_all_succeed;
using testing::run_processes;
using testing::run_threads;
using Message = PointToPoint::Request;

constexpr int kMany = 3 * kSlots + 7;

/// Many all-reduces of one group, in flight at once.
class Sums {
 public:
  Sums(Group& group, int operations, size_t count, float first) : group_(group), first_(first) {
    for (int i = 0; i < operations; ++i) data_.emplace_back(count, first + static_cast<float>(i));
  }
  /// Starts so many more.
  void start(size_t operations) {
    for (size_t n = 0; n < operations; ++n) {
      auto& data = data_[started_.size()];
      started_.push_back(group_.start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM));
    }
  }
  void start_all() { start(data_.size() - started_.size()); }
  Group::Sequence last() const { return started_.back(); }
  void wait_for_all(bool backwards = false) {
    for (size_t n = 0; n < started_.size(); ++n) {
      group_.wait(started_[backwards ? started_.size() - 1 - n : n], kTimeout);
    }
    for (size_t n = 0; n < started_.size(); ++n) {
      const float sum = (first_ + static_cast<float>(n)) * static_cast<float>(group_.size());
      ASSERT_EQ(data_[n].front(), sum) << n;
      ASSERT_EQ(data_[n].back(), sum) << n;
    }
  }
  /// Each of them ends with the same error.
  template <class Error>
  void expect_error(const std::string& text) {
    for (const Group::Sequence sequence : started_) {
      if (group_.has_ended(sequence)) continue;
      expect_contains(message_of<Error>([&] { group_.wait(sequence, kTimeout); }), text);
    }
  }

 private:
  Group& group_;
  float first_;
  std::vector<std::vector<float>> data_;
  std::vector<Group::Sequence> started_;
};

/// Sizes of every path, of which the last passes through windows.
constexpr size_t kCounts[] = {4, 1000, 40000};

class QueueTest : public ::testing::TestWithParam<int> {
 protected:
  /// A rank must be woken by what its peers do: none looks by itself.
  static void as_processes(size_t arena_bytes, const std::function<void(Rank&)>& body) {
    const UniqueFd segment = create_segment(GetParam(), arena_bytes);
    expect_all_succeed(run_processes(GetParam(), [&](int rank) {
      Rank self(segment.get(), rank);
      {
        const Engine::Lock lock(self.node.engine().mutex());
        self.node.engine().look_at_peers_every(1h);
      }
      body(self);
      self.group.barrier(kTimeout);
    }));
  }
};

TEST_P(QueueTest, TwoGroupsInAnotherOrderOnEachRank) {
  for (const size_t arena_bytes : {kArenaBytes, kHugePage}) {
    as_processes(arena_bytes, [](Rank& self) {
      const auto first = another_group(self), second = another_group(self);
      for (const size_t count : kCounts) {
        Sums a(*first, kMany, count, 1.0F), b(*second, kMany, count, 1000.0F);
        Sums& before = self.group.rank() % 2 == 0 ? a : b;
        Sums& after = self.group.rank() % 2 == 0 ? b : a;
        before.start_all();
        after.start_all();
        after.wait_for_all(/*backwards=*/self.group.rank() % 3 == 0);
        before.wait_for_all();
      }
      EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
    });
  }
}

/// Who waits for a small operation has the results of the large ones before it, which take their peers' turns.
TEST_P(QueueTest, OperationsEndInTheOrderOfTheirStarts) {
  as_processes(kArenaBytes, [](Rank& self) {
    for (int round = 0; round < 20; ++round) {
      constexpr size_t kCount = 400000;
      std::vector<float> data(kCount, static_cast<float>(round));
      const auto large = self.group.start_all_reduce(data.data(), kCount, DType::float32, ReduceOp::SUM);
      if (round % 2 == 0) {
        self.group.barrier(kTimeout);
      } else {
        const auto small = self.group.start_barrier();
        while (!self.group.is_complete(small)) {
        }
      }
      ASSERT_TRUE(self.group.has_ended(large));
      const float sum = static_cast<float>(round * self.group.size());
      ASSERT_EQ(data, std::vector<float>(kCount, sum)) << round;
    }
  });
}

/// The arenas of both ranks are full of windows of one group, which the other rank starts only after the other one.
TEST_P(QueueTest, GroupsThatHaveTheArenaEachForThemselves) {
  as_processes(kHugePage, [](Rank& self) {
    const auto first = another_group(self), second = another_group(self), third = another_group(self);
    constexpr size_t kCount = 300000;
    constexpr int kOperations = 7;  // of which each wants a quarter of the arena
    Sums sums[] = {{*first, kOperations, kCount, 1.0F},
                   {*second, kOperations, kCount, 20.0F},
                   {*third, kOperations, kCount, 40.0F}};
    for (size_t i = 0; i < 3; ++i) sums[(i + static_cast<size_t>(self.group.rank())) % 3].start_all();
    for (size_t i = 0; i < 3; ++i) sums[(i * 2 + static_cast<size_t>(self.group.rank())) % 3].wait_for_all();
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  });
}

/// Tensors have all of the arena, and give nothing back.
TEST_P(QueueTest, AFullArenaHoldsNoOperationUp) {
  as_processes(kHugePage, [](Rank& self) {
    std::byte* const all = self.node.arena().allocate(kHugePage);
    Sums sums(self.group, 2 * kSlots, 40000, 1.0F);
    sums.start_all();
    sums.wait_for_all();
    self.node.arena().release(all);
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  });
}

/// One rank starts all it has before any other rank starts anything.
TEST_P(QueueTest, StartingNeverWaits) {
  as_processes(kArenaBytes, [](Rank& self) {
    const auto group = another_group(self);
    for (const size_t count : kCounts) {
      Sums sums(*group, kMany, count, 3.0F);
      for (int turn = 0; turn < self.group.size(); ++turn) {
        if (turn == self.group.rank()) sums.start_all();
        self.group.barrier(kTimeout);
      }
      sums.wait_for_all();
    }
  });
}

TEST_P(QueueTest, WhatBlocksComesBehindWhatIsQueued) {
  as_processes(kArenaBytes, [](Rank& self) {
    const auto group = another_group(self);
    const auto ranks = static_cast<float>(group->size());
    for (const size_t count : kCounts) {
      Sums sums(*group, kMany, count, 3.0F);
      if (self.group.rank() == self.group.size() - 1) std::this_thread::sleep_for(20ms);
      sums.start(kMany / 2);
      std::vector<float> data(count, 2.0F);
      group->all_reduce(data.data(), count, DType::float32, ReduceOp::SUM, kTimeout);
      EXPECT_EQ(data, std::vector<float>(count, 2 * ranks));
      sums.start_all();
      group->barrier(kTimeout);
      broadcast(*group, data.data(), count, DType::float32, group->size() - 1, kTimeout);
      sums.wait_for_all();
    }
  });
}

/// Messages do not stand in the queue.
TEST_P(QueueTest, MessagesPassWhatIsQueued) {
  as_processes(kArenaBytes, [](Rank& self) {
    const auto group = another_group(self);
    const int rank = group->rank(), next = (rank + 1) % group->size();
    const int previous = (rank + group->size() - 1) % group->size();
    for (const size_t count : kCounts) {
      Sums sums(*group, kMany, count, 3.0F);
      std::vector<float> sent(count, static_cast<float>(rank)), received(count, -1.0F);
      const auto message = [&](bool is_send, int peer, std::vector<float>& data) {
        return Message{.is_send = is_send,
                       .peer = peer,
                       .data = reinterpret_cast<std::byte*>(data.data()),
                       .bytes = data.size() * sizeof(float)};
      };
      if (rank != 0) sums.start_all();  // rank 0 does so once a message from a rank with a queue has come
      Message send = message(true, next, sent), receive = message(false, previous, received);
      group->start(receive);
      group->start(send);
      group->wait(receive, kTimeout);
      if (rank == 0) sums.start_all();
      group->wait(send, kTimeout);
      EXPECT_EQ(received, std::vector<float>(count, static_cast<float>(previous)));
      sums.wait_for_all(/*backwards=*/true);
    }
  });
}

/// The arena is full of another group's windows, or of its messages: a send waits until one of them has ended.
TEST_P(QueueTest, AMessageWaitsForWhatAnotherGroupHolds) {
  as_processes(kHugePage, [](Rank& self) {
    const auto first = another_group(self), second = another_group(self);
    const int rank = first->rank(), next = (rank + 1) % first->size();
    const int previous = (rank + first->size() - 1) % first->size();
    const auto message = [](bool is_send, int peer, uint64_t tag, std::vector<float>& data) {
      return Message{.is_send = is_send,
                     .peer = peer,
                     .tag = tag,
                     .data = reinterpret_cast<std::byte*>(data.data()),
                     .bytes = data.size() * sizeof(float)};
    };
    constexpr size_t kCount = 300000;
    for (const bool are_messages : {false, true}) {
      Sums sums(*first, 7, kCount, 1.0F);
      std::deque<std::vector<float>> data;
      std::deque<Message> sends, receives;
      const auto add = [&](std::deque<Message>& to, bool is_send, int peer, uint64_t tag) -> Message& {
        const float value = is_send ? static_cast<float>(tag * 100) + static_cast<float>(rank) : -1.0F;
        return to.emplace_back(message(is_send, peer, tag, data.emplace_back(kCount, value)));
      };
      if (are_messages) {
        for (uint64_t tag = 1; tag <= 7; ++tag) first->start(add(sends, true, next, tag));
      } else {
        sums.start_all();
      }
      second->start(add(sends, true, next, 9));
      self.group.barrier(kTimeout);  // nobody has received or waited before all have started
      second->start(add(receives, false, previous, 9));
      for (uint64_t tag = 1; are_messages && tag <= 7; ++tag) {
        first->start(add(receives, false, previous, tag));
      }
      second->wait(sends.back(), kTimeout);
      second->wait(receives.front(), kTimeout);
      for (size_t i = 0; i + 1 < sends.size(); ++i) first->wait(sends[i], kTimeout);
      for (size_t i = 1; i < receives.size(); ++i) first->wait(receives[i], kTimeout);
      if (!are_messages) sums.wait_for_all();
      for (const Message& receive : receives) {
        const float expected = static_cast<float>(receive.tag * 100) + static_cast<float>(previous);
        EXPECT_EQ(reinterpret_cast<const float*>(receive.data)[kCount - 1], expected) << receive.tag;
      }
    }
  });
}

/// Messages that have been received keep nothing back, whichever group sent them.
TEST_P(QueueTest, WhatAnotherGroupsMessagesHeldIsFree) {
  as_processes(kHugePage, [](Rank& self) {
    const auto first = another_group(self), second = another_group(self);
    const int next = (self.group.rank() + 1) % self.group.size();
    const int previous = (self.group.rank() + self.group.size() - 1) % self.group.size();
    std::vector<float> sent(450000, 2.0F), received(450000);
    for (const auto& group : {first.get(), second.get(), first.get()}) {
      Message send{.is_send = true,
                   .peer = next,
                   .data = reinterpret_cast<std::byte*>(sent.data()),
                   .bytes = sent.size() * sizeof(float)};
      Message receive = send;
      receive.is_send = false;
      receive.peer = previous;
      receive.data = reinterpret_cast<std::byte*>(received.data());
      group->start(send);
      group->start(receive);
      group->wait(send, kTimeout);
      group->wait(receive, kTimeout);
      self.group.barrier(kTimeout);
    }
    self.node.arena().release(first->allocate(kHugePage));
  });
}

/// Tensors hold what is missing: nothing would give it back, so it is an error at once.
TEST_P(QueueTest, AMessageForWhichTensorsLeaveNoRoomIsAnError) {
  as_processes(kHugePage, [](Rank& self) {
    std::byte* const all = self.node.arena().allocate(kHugePage);
    std::vector<float> data(5000, 1.0F);
    Message send{.is_send = true,
                 .peer = (self.group.rank() + 1) % self.group.size(),
                 .data = reinterpret_cast<std::byte*>(data.data()),
                 .bytes = data.size() * sizeof(float)};
    EXPECT_THROW(self.group.start(send), Error);
    self.node.arena().release(all);
  });
}

TEST_P(QueueTest, WhatIsQueuedGoesOnAfterClosing) {
  as_processes(kArenaBytes, [](Rank& self) {
    const auto group = another_group(self);
    Sums sums(*group, kMany, 40000, 3.0F);
    if (self.group.rank() == 0) {
      sums.start_all();
      group->close();
    }
    self.group.barrier(kTimeout);
    sums.start_all();
    sums.wait_for_all();
    self.group.barrier(kTimeout);
    if (self.group.rank() != 0) {
      EXPECT_THROW(group->barrier(kTimeout), PeerLostError);
    }
  });
}

TEST_P(QueueTest, ProgressAndPollingPostWhatIsQueued) {
  as_processes(kArenaBytes, [](Rank& self) {
    const auto group = another_group(self);
    for (const size_t count : kCounts) {
      Sums sums(*group, kMany, count, 3.0F);
      sums.start_all();
      const auto deadline = Clock::now() + kTimeout;
      if (self.group.rank() % 2 == 0) {
        while (!group->is_complete(sums.last()) && Clock::now() < deadline) std::this_thread::yield();
      } else {
        while (!group->has_ended(sums.last()) && Clock::now() < deadline) self.group.progress();
      }
      EXPECT_TRUE(group->has_ended(sums.last()));
      sums.wait_for_all();
    }
  });
}

/// The others have fallen asleep, and wait for nothing but what rank 0 has queued.
TEST_P(QueueTest, WhatIsPostedLateWakesTheOthers) {
  as_processes(kArenaBytes, [](Rank& self) {
    const auto group = another_group(self);
    Sums sums(*group, kSlots + 10, 4, 1.0F);
    if (self.group.rank() == 0) {
      std::this_thread::sleep_for(10ms);
      sums.start_all();  // of which it ends most, but nobody else any
      std::this_thread::sleep_for(100ms);
    } else {
      sums.start(kSlots - 14);
      std::this_thread::sleep_for(40ms);
      sums.start_all();
    }
    const auto begin = Clock::now();
    group->wait(sums.last(), kTimeout);
    EXPECT_LT(Clock::now() - begin, kTimeout / 2);  // who sleeps through it wakes at its deadline
    sums.wait_for_all();
    self.group.barrier(kTimeout);  // the end of a group wakes too
  });
}

/// Groups, each with a program of its own that all ranks share, started by each rank in an order of its own.
class QueuePlayer : FuzzItems {
 public:
  QueuePlayer(Rank& self, uint64_t seed)
      : FuzzItems(seed, self.group.rank(), self.node.segment().arena_bytes() <= kHugePage),
        self_(self),
        program_(seed * 7 + 3) {
    for (size_t n = between(program_, 1, 4); n > 0; --n) groups_.push_back(another_group(self));
  }

  void play(size_t rounds, size_t most) {
    for (size_t round = 0; round < rounds; ++round) {
      std::vector<std::deque<std::function<void()>>> plans;
      for (const auto& group : groups_) plans.push_back(plan_of(*group, between(program_, 1, most)));
      while (std::any_of(plans.begin(), plans.end(), [](const auto& plan) { return !plan.empty(); })) {
        auto& plan = plans[pick(own_, plans.size())];
        for (size_t n = between(own_, 1, 100); n > 0 && !plan.empty(); --n) {
          plan.front()();
          plan.pop_front();
          if (chance(own_, 4)) look_at_one();
        }
      }
      // All ranks start all of the round, whatever comes of it.
      while (items_.size() > (round + 1 == rounds ? 0 : most / 2)) finish_one();
    }
    self_.group.barrier(kTimeout);
  }

 private:
  size_t random_bytes() {
    const size_t kind = pick(program_, 100);
    if (kind < 45) return between(program_, 0, kInlineBytes + 8);
    if (kind < 75) return between(program_, kInlineBytes, 3000);
    if (kind < 88) return between(program_, kStagingBytes - 64, kStagingBytes + 2048);
    if (kind < 97) return between(program_, kStagingBytes, 2 * kBlockBytes);
    return between(program_, kWindowBytes - 256, kWindowBytes + kBlockBytes);
  }

  std::deque<std::function<void()>> plan_of(Group& group, size_t operations) {
    std::deque<std::function<void()>> plan;
    const auto ranks = static_cast<size_t>(group.size());
    for (size_t n = 0; n < operations; ++n) {
      constexpr DType kDTypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::int64};
      const DType dtype = kDTypes[pick(program_, std::size(kDTypes))];
      const size_t kind = pick(program_, 14);
      const size_t bytes = random_bytes() / (kind >= 5 ? ranks : 1);
      const size_t count = bytes / element_size(dtype);
      const int root = static_cast<int>(pick(program_, ranks));
      const int peer = static_cast<int>(pick(program_, ranks));
      plan.emplace_back([=, this, &group, number = ++number_, salt = program_()] {
        start(group, kind, number, dtype, count, root, peer, salt);
      });
    }
    return plan;
  }

  void start(Group& group, size_t kind, uint64_t number, DType dtype, size_t count, int root, int peer,
             uint64_t salt) {
    if (kind == 13) return message(group, number, count * element_size(dtype), root, peer);
    Item& item = new_item(group, "collective " + std::to_string(kind) + " of " + std::to_string(count) + " " +
                                     dtype_name(dtype));
    if (kind < 5) {
      start_reduction(item, kind, number, dtype, count, root, salt);
    } else if (kind == 5) {
      item.sequence = group.start_barrier();
    } else if (kind < 10) {
      start_from_one_or_to_one(item, kind, number, dtype, count, root);
    } else {
      start_all_to_all(item, kind, number, dtype, count, salt);
    }
  }

  void message(Group& group, uint64_t number, size_t bytes, int from, int to) {
    for (const bool is_send : {true, false}) {
      if (group.rank() != (is_send ? from : to)) continue;
      Item& item = new_item(group, is_send ? "send" : "receive");
      Buffer& data = add_buffer(item, bytes);
      const uint64_t key = key_of(seed_, number, from);
      if (is_send) fill_bytes(data.data, bytes, key);
      item.request = {
          .is_send = is_send, .peer = is_send ? to : from, .tag = number, .data = data.data, .bytes = bytes};
      item.check = [key](Item& done) {
        Bytes expected(done.buffers[0]->bytes);
        fill_bytes(expected.data(), expected.size(), key);
        expect_bytes(done, done.buffers[0]->data, expected);
      };
      group.start(item.request);
    }
  }

  Item& new_item(Group& group, const std::string& what) {
    items_.push_back(std::make_unique<Item>());
    Item& item = *items_.back();
    item.group = &group;
    item.what = "seed " + std::to_string(seed_) + ", rank " + std::to_string(group.rank()) + " of " +
                std::to_string(group.size()) + ": " + what;
    return item;
  }

  /// At one that some rank may not have started, so without waiting for its end.
  void look_at_one() {
    if (items_.empty()) return;
    Item& item = *items_[pick(own_, items_.size())];
    const bool is_message = item.sequence == 0;
    if (chance(own_, 50)) {
      static_cast<void>(is_message ? item.group->is_complete(item.request)
                                   : item.group->is_complete(item.sequence));
      return;
    }
    try {
      if (is_message) {
        item.group->wait(item.request, 1ms, AfterTimeout::unchanged);
      } else {
        item.group->wait(item.sequence, 1ms, AfterTimeout::unchanged);
      }
    } catch (const TimeoutError&) {
      return;  // it goes on
    }
  }

  void finish_one() {
    std::swap(items_[pick(own_, items_.size())], items_.back());
    const std::unique_ptr<Item> item = std::move(items_.back());
    items_.pop_back();
    try {
      if (item->sequence != 0) {
        item->group->wait(item->sequence, kTimeout);
      } else {
        item->group->wait(item->request, kTimeout);
      }
    } catch (const std::exception& error) {
      throw Error(item->what + ": " + error.what());
    }
    if (item->check) item->check(*item);
  }

  Rank& self_;
  Random program_;  // the same on all ranks
  uint64_t number_ = 0;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Item>> items_;
};

constexpr size_t kLargeArena = size_t{1} << 30;  // is sparse
size_t arena_of(uint64_t seed) { return seed % 2 == 0 ? kHugePage : kLargeArena; }

TEST_P(QueueTest, RandomProgramsInAnotherOrderOnEachRank) {
  const auto first = static_cast<uint64_t>(env::get_int("LOCKSTEP_FUZZ_SEED").value_or(1));
  const auto programs = static_cast<uint64_t>(env::get_int("LOCKSTEP_FUZZ_PROGRAMS").value_or(3));
  for (uint64_t seed = first; seed < first + programs; ++seed) {
    const UniqueFd segment = create_segment(GetParam(), arena_of(seed));
    expect_all_succeed(run_processes(GetParam(), [&](int rank) {
      Rank self(segment.get(), rank);
      if ((seed + static_cast<uint64_t>(rank)) % 4 == 0) self.node.engine().start_progress_thread();
      QueuePlayer(self, seed).play(2, 300);
      EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
    }));
    if (HasFailure()) FAIL() << "at " << GetParam() << " ranks, seed " << seed;
  }
}

/// For the thread sanitizer.
TEST_P(QueueTest, RanksAsThreads) {
  for (uint64_t seed = 11; seed <= 12; ++seed) {
    const UniqueFd fd = create_segment(GetParam(), arena_of(seed));
    const auto segment = std::make_shared<const Segment>(Segment::map(fd.get()));
    run_threads(GetParam(), [&](int rank) {
      Rank self(segment, rank);
      if ((seed + static_cast<uint64_t>(rank)) % 3 == 0) self.node.engine().start_progress_thread();
      QueuePlayer(self, seed).play(1, 150);
    });
    if (HasFailure()) FAIL() << "at " << GetParam() << " ranks, seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, QueueTest, ::testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

// ------------------------------------------------------------------------------- failures with a queue

TEST(QueueFailureTest, ATimeoutNamesWhoHoldsTheQueueBack) {
  run_ranks(3, [&](Rank& self, int rank) {
    const auto group = another_group(self);
    if (rank == 2) {  // too late
      self.group.barrier(kTimeout);
      EXPECT_THROW(group->barrier(kTimeout), TimeoutError);
      return;
    }
    Sums sums(*group, kMany, 4, 1.0F);
    sums.start_all();
    Message started{.is_send = rank == 1, .peer = 1 - rank};  // rank 1 has, too
    self.group.start(started);
    self.group.wait(started, kTimeout);
    const std::string name = "all_reduce #" + std::to_string(kMany) + " (float32[4], SUM)";
    const std::string message =
        message_of<TimeoutError>([&] { group->wait(sums.last(), rank == 0 ? 300ms : kTimeout); });
    expect_contains(message,
                    name + ", which is queued behind all_reduce #1 (float32[4], SUM), waited 300 ms for");
    expect_contains(message, "rank 2 (pid ");
    EXPECT_EQ(message.find("rank 1 (pid "), std::string::npos) << message;
    sums.expect_error<TimeoutError>(message);
    EXPECT_EQ(message_of<TimeoutError>([&] { group->start_barrier(); }), message);
    self.group.barrier(kTimeout);
  });
}

TEST(QueueFailureTest, AShortWaitLeavesTheQueueAsItIs) {
  run_ranks(2, [&](Rank& self, int rank) {
    const auto group = another_group(self);
    Sums sums(*group, kMany, 40000, 1.0F);
    if (rank == 0) {
      sums.start_all();
      EXPECT_THROW(group->wait(sums.last(), 20ms, AfterTimeout::unchanged), TimeoutError);
    }
    self.group.barrier(kTimeout);
    sums.start_all();
    sums.wait_for_all();
  });
}

/// All that were started get the first cause, and their memory comes back.
TEST(QueueFailureTest, ADeathEndsWhatIsQueued) {
  for (const size_t count : kCounts) {
    const UniqueFd segment = create_segment(3, kHugePage);
    const auto statuses = run_processes(3, [&](int rank) {
      Rank self(segment.get(), rank);
      self.group.barrier(kTimeout);
      Sums sums(self.group, kMany, count, 1.0F);
      if (rank == 1) {
        sums.start(10);
        ::raise(SIGKILL);
      }
      const std::string message = message_of<PeerLostError>([&] {
        sums.start_all();
        self.group.wait(sums.last(), kTimeout);
      });
      expect_contains(message, "lost rank 1 (pid ");
      sums.expect_error<PeerLostError>(message);
      EXPECT_EQ(message_of<PeerLostError>([&] { self.group.barrier(kTimeout); }), message);
      for (int n = 0; n < 1000 && self.node.arena().bytes_in_use() > 0; ++n)
        std::this_thread::sleep_for(10ms);
      EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
    });
    EXPECT_EQ(statuses[0], 0);
    EXPECT_EQ(statuses[2], 0);
  }
}

TEST(QueueFailureTest, LeavingEndsWhatIsQueued) {
  run_ranks(2, [&](Rank& self, int rank) {
    const auto group = another_group(self);
    Sums sums(*group, kMany, 1000, 1.0F);
    if (rank == 0) {
      sums.start_all();
      group->leave();
      self.group.barrier(kTimeout);
      sums.expect_error<Error>("was destroyed before the operation had ended");
    } else {
      self.group.barrier(kTimeout);
      sums.start_all();
      const std::string message = message_of<PeerLostError>([&] { group->wait(sums.last(), kTimeout); });
      expect_contains(message, "lost rank 0 (pid ");
      sums.expect_error<PeerLostError>(message);
    }
    EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
    self.group.barrier(kTimeout);
  });
}

/// The step of rank 1 fails. The group that takes the place of the interrupted one begins anew.
void interrupt_and_renew(Rank& self, size_t count) {
  const int rank = self.group.rank();
  const auto group = another_group(self);
  Sums failing(*group, kMany, count, 1.0F);
  if (rank == 1) {
    failing.start(10);
    group->interrupt("a step failed");
  } else {
    static_cast<void>(message_of<StepFailedError>([&] { failing.start_all(); }));
  }
  self.group.barrier(kTimeout);
  failing.expect_error<StepFailedError>("a step failed");
  self.group.barrier(kTimeout);
  group->retire();
  self.group.barrier(kTimeout);
  failing.expect_error<StepFailedError>("a step failed");
  Group renewed(self.node, group->area(), Rank::everyone(self.node), rank, kTimeout);
  Sums sums(renewed, kMany, count, 5.0F);
  sums.start_all();
  sums.wait_for_all();
  EXPECT_EQ(self.node.arena().bytes_in_use(), 0u);
  self.group.barrier(kTimeout);
}

TEST(QueueFailureTest, AnInterruptEndsWhatIsQueued) {
  for (const size_t count : kCounts) {
    const UniqueFd segment = create_segment(3, kHugePage);
    expect_all_succeed(run_processes(3, [&](int rank) {
      Rank self(segment.get(), rank);
      interrupt_and_renew(self, count);
    }));
  }
}

/// For the thread sanitizer.
TEST(QueueFailureTest, RanksAsThreads) {
  const UniqueFd fd = create_segment(3, kHugePage);
  const auto segment = std::make_shared<const Segment>(Segment::map(fd.get()));
  run_threads(3, [&](int rank) {
    Rank self(segment, rank);
    for (const size_t count : kCounts) interrupt_and_renew(self, count);
  });
}

/// Also of one that this rank has only queued.
TEST(QueueFailureTest, DifferentCallsAreToldToAll) {
  run_ranks(3, [&](Rank& self, int rank) {
    Sums sums(self.group, kSlots + 5, 1000, 1.0F);
    if (rank == 0) std::this_thread::sleep_for(20ms);
    sums.start_all();
    std::vector<float> data(rank == 2 ? 11 : 10);
    const std::string name = "all_reduce #" + std::to_string(kSlots + 6);
    const std::string message = message_of<MismatchError>([&] {
      self.group.wait(self.group.start_all_reduce(data.data(), data.size(), DType::float32, ReduceOp::SUM),
                      kTimeout);
    });
    expect_contains(message, "rank 0 called " + name + " (float32[10], SUM), rank 2 called " + name +
                                 " (float32[11], SUM)");
  });
}

}  // namespace
}  // namespace lockstep::shm
