// The operations of a leader: their order, and who runs them.
#include "lockstep/comm/backends/operation_queue.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace lockstep::backends {
namespace {

using namespace std::chrono_literals;
using Runner = OperationQueue::Runner;

constexpr auto kLongest = std::chrono::milliseconds(60s);
const auto kNoLook = [] {};

TEST(OperationQueue, RunsWhatNobodyWaitsForInItsThread) {
  OperationQueue queue(kNoLook);
  std::thread::id runner;
  queue.post([&] { runner = std::this_thread::get_id(); });
  ASSERT_TRUE(queue.drain(kLongest));
  EXPECT_NE(runner, std::thread::id());
  EXPECT_NE(runner, std::this_thread::get_id());
  EXPECT_FALSE(queue.run_next()) << "nothing is left";
}

TEST(OperationQueue, ACallerRunsItsOwnIfNothingIsInFlight) {
  OperationQueue queue(kNoLook);
  for (int i = 0; i < 100; ++i) {
    std::thread::id runner;
    queue.post([&] { runner = std::this_thread::get_id(); }, Runner::caller);
    EXPECT_TRUE(queue.run_next());
    EXPECT_EQ(runner, std::this_thread::get_id());
  }
}

TEST(OperationQueue, ACallersOperationStaysBehindWhatIsInFlight) {
  OperationQueue queue(kNoLook);
  std::atomic<bool> may_end = false, has_begun = false;
  std::vector<int> order;
  queue.post([&] {
    has_begun = true;
    while (!may_end) std::this_thread::sleep_for(1ms);
    order.push_back(1);
  });
  while (!has_begun) std::this_thread::sleep_for(1ms);
  queue.post([&] { order.push_back(2); });
  queue.post([&] { order.push_back(3); }, Runner::caller);
  EXPECT_FALSE(queue.run_next()) << "the thread runs one, and sees to the rest";
  may_end = true;
  ASSERT_TRUE(queue.drain(kLongest));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

/// The thread runs what comes while a caller runs its own.
TEST(OperationQueue, ACallerThatHasEndedLeavesTheRestToTheThread) {
  OperationQueue queue(kNoLook);
  std::vector<int> order;
  queue.post(
      [&] {
        std::thread([&] { queue.post([&] { order.push_back(2); }); }).join();
        order.push_back(1);
      },
      Runner::caller);
  EXPECT_TRUE(queue.run_next());
  ASSERT_TRUE(queue.drain(kLongest));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(OperationQueue, OneOperationAtATimeWhoeverCalls) {
  OperationQueue queue(kNoLook);
  int running = 0, most = 0, ended = 0;  // no lock: the queue orders them
  constexpr int kThreads = 4, kEach = 2000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const Runner runner = (i + t) % 3 == 0 ? Runner::thread : Runner::caller;
        std::atomic<bool> has_ended = false;
        queue.post(
            [&] {
              most = std::max(most, ++running);
              --running;
              ++ended;
              has_ended = true;
            },
            runner);
        while (!has_ended) {
          if (!queue.run_next()) std::this_thread::yield();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(queue.drain(kLongest));
  EXPECT_EQ(most, 1);
  EXPECT_EQ(ended, kThreads * kEach);
}

TEST(OperationQueue, LooksWhileACallersOperationTakesLong) {
  std::atomic<int> looks = 0;
  OperationQueue queue([&] { ++looks; });
  for (int round = 1; round <= 2; ++round) {
    looks = 0;
    queue.post(
        [&] {
          const auto end = std::chrono::steady_clock::now() + kLongest;
          while (looks < 2 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
        },
        Runner::caller);
    EXPECT_TRUE(queue.run_next());
    EXPECT_GE(looks, 2) << "round " << round;
  }
}

TEST(OperationQueue, NothingIsDrainedWhileTheThreadLooks) {
  std::atomic<bool> looks = false, may_end = false;
  OperationQueue queue([&] {
    looks = true;
    while (!may_end) std::this_thread::sleep_for(1ms);
  });
  queue.post(
      [&] {
        while (!looks) std::this_thread::sleep_for(1ms);
      },
      Runner::caller);
  EXPECT_TRUE(queue.run_next());
  EXPECT_FALSE(queue.drain(10ms)) << "what the thread looks at may go then";
  may_end = true;
  EXPECT_TRUE(queue.drain(kLongest));
}

TEST(OperationQueue, AddsUpAlikeInAllThreads) {
  OperationQueue queue(kNoLook);
  const auto adds_subnormals = [](float* sum) {
    volatile float small = 1e-40F;
    *sum = small + small;
  };
  float by_thread = 0, by_caller = 0, afterwards = 1;
  const unsigned int before = _mm_getcsr();
  _mm_setcsr(before | 0x8040U);  // as torch.set_flush_denormal(True)
  queue.post([&] { adds_subnormals(&by_thread); });
  EXPECT_TRUE(queue.drain(kLongest));
  queue.post([&] { adds_subnormals(&by_caller); }, Runner::caller);
  EXPECT_TRUE(queue.run_next());
  adds_subnormals(&afterwards);
  _mm_setcsr(before);
  EXPECT_GT(by_thread, 0);
  EXPECT_EQ(by_caller, by_thread);
  EXPECT_EQ(afterwards, 0) << "the caller's own mode is back";
}

TEST(OperationQueue, TheDestructorWaitsForAll) {
  std::atomic<int> ended = 0;
  {
    OperationQueue queue(kNoLook);
    for (int i = 0; i < 10; ++i) {
      queue.post([&] {
        std::this_thread::sleep_for(1ms);
        ++ended;
      });
    }
  }
  EXPECT_EQ(ended, 10);
}

}  // namespace
}  // namespace lockstep::backends
