// A group over several machines whose ranks are threads of this process, for the thread sanitizer: leaders' threads, those of
// control connections, and an uplink in memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/backends/hybrid.h"
#include "lockstep/comm/backends/hybrid_state.h"
#include "lockstep/comm/backends/shared_memory.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/uplink/sum_plan.h"
#include "lockstep/comm/uplink/wire.h"
#include "lockstep/comm/work.h"
#include "lockstep/shm/node.h"
#include "tests/comm/fake_uplink.h"
#include "tests/comm/places_of_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using uplink::PlacesOfRanks;
using uplink::SumPlan;
using uplink::testing::Cables;
using uplink::testing::FakeUplink;

constexpr auto kTimeout = std::chrono::milliseconds(60s);
constexpr size_t kArenaBytes = size_t{16} << 20;

/// Stands for Gloo, which these cases do not use.
class NoFlatGroup final : public ProcessGroup::Impl {
 public:
  NoFlatGroup(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override {
    static const std::string kName = "none";
    return kName;
  }
  c10::intrusive_ptr<c10d::Backend> backend() override { refuse(); }
  Timeout timeout() const override { return kTimeout; }
  void set_timeout(Timeout /*timeout*/) override {}
  WorkPtr start(const Collective& /*collective*/) override { refuse(); }
  void monitored_barrier(Timeout /*timeout*/) override { refuse(); }
  void progress() override {}
  std::shared_ptr<FollowUps> follow_ups() const override { refuse(); }
  at::Tensor empty_shared(at::IntArrayRef /*sizes*/, at::ScalarType /*dtype*/) override { refuse(); }
  at::Tensor empty_common(at::IntArrayRef /*sizes*/, at::ScalarType /*dtype*/) override { refuse(); }
  std::shared_ptr<Impl> new_group(const std::vector<int>& /*members*/, Timeout /*timeout*/) override {
    refuse();
  }
  int find_rank_ahead() override { return -1; }
  void interrupt(const std::string& /*why*/) noexcept override {}
  bool is_interrupted() const override { return false; }
  void clear() override {}
  void renew() override {}

 private:
  [[noreturn]] static void refuse() { throw Error("there is no flat group here"); }
  int rank_, size_;
};

/// What a rank has.
struct Rank {
  ProcessGroup group;
  Cables& cables;
  int machine;
  bool is_leader;
};

/// Runs `body` on each rank, as a thread.
void on_each(const std::vector<int>& machine_of, const std::function<void(const Rank&)>& body) {
  const SumPlan plan(machine_of);
  Cables cables(plan.machines());
  PlacesOfRanks meeting(static_cast<size_t>(plan.machines()));
  std::vector<std::shared_ptr<const shm::Segment>> segments;
  std::vector<std::vector<int>> ranks_of;
  for (int m = 0; m < plan.machines(); ++m) {
    ranks_of.push_back(plan.ranks_of(m));
    const UniqueFd fd = shm::create_segment(static_cast<int>(ranks_of.back().size()), kArenaBytes);
    segments.push_back(std::make_shared<const shm::Segment>(shm::Segment::map(fd.get())));
  }
  std::vector<int> all(machine_of.size());
  std::iota(all.begin(), all.end(), 0);
  const auto join = [&](int rank) {
    const int machine = machine_of[static_cast<size_t>(rank)];
    const std::vector<int>& here = plan.ranks_of(machine);
    const int place = static_cast<int>(std::find(here.begin(), here.end(), rank) - here.begin());
    auto node = std::make_shared<shm::Node>(segments[static_cast<size_t>(machine)], place);
    node->wait_for_all(kTimeout);
    auto local = backends::make_shared_memory(std::move(node), kTimeout);
    auto wire = place > 0
                    ? nullptr
                    : std::make_unique<uplink::Wire>(std::make_unique<FakeUplink>(cables, machine), ranks_of);
    auto control = std::make_shared<uplink::Control>(
        uplink::ControlPlace{.rank = rank, .machine_of = machine_of, .host = "127.0.0.1", .secret = "s"},
        [&](const std::string* own) { return meeting.exchange(machine, own); }, kTimeout);
    return backends::wrap_hybrid(
        std::make_shared<backends::HybridState>(
            rank, plan, std::move(local), std::make_shared<NoFlatGroup>(rank, plan.ranks()), std::move(wire),
            backends::HybridControl{std::move(control), "test"}, all),
        kTimeout);
  };
  std::vector<std::thread> threads;
  for (const int rank : all) {
    threads.emplace_back([&, rank] {
      try {
        const int machine = machine_of[static_cast<size_t>(rank)];
        body({.group = ProcessGroup(join(rank)),
              .cables = cables,
              .machine = machine,
              .is_leader = plan.ranks_of(machine).front() == rank});
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void on_ranks(const std::vector<int>& machine_of, const std::function<void(const ProcessGroup&)>& body) {
  on_each(machine_of, [&](const Rank& rank) { body(rank.group); });
}

const std::vector<std::vector<int>>& layouts() {
  static const std::vector<std::vector<int>> kLayouts{{0, 0, 1, 1}, {0, 1, 1}, {0, 1, 2}, {0, 0, 1, 2, 2}};
  return kLayouts;
}

/// Integers, so that every order has one sum.
at::Tensor value_of(int rank, int64_t count, int step) {
  return at::full({count}, (rank + 1) * (step % 7 + 1), at::kInt);
}

TEST(RanksAsThreads, OperationsInFlight) {
  for (const std::vector<int>& layout : layouts()) {
    on_ranks(layout, [](const ProcessGroup& group) {
      std::mt19937 random(7);  // the same on all ranks
      std::mt19937 own(static_cast<unsigned>(group.rank()));
      std::vector<std::pair<std::shared_ptr<Work>, std::function<bool()>>> started;
      const int sum_of_ranks = group.size() * (group.size() + 1) / 2;
      for (int step = 0; step < 40; ++step) {
        constexpr int64_t kCounts[] = {1, 100, 3000, 70000, 300000};
        const int64_t count = kCounts[random() % 5];
        const int root = static_cast<int>(random() % static_cast<unsigned>(group.size()));
        const at::Tensor tensor = value_of(group.rank(), count, step);
        const int factor = step % 7 + 1;
        switch (random() % 5) {
          case 0:
            started.emplace_back(group.broadcast_async(tensor, {.src = root}),
                                 [=] { return tensor.eq((root + 1) * factor).all().item<bool>(); });
            break;
          case 1: {
            const at::Tensor all = at::empty({group.size() * count}, at::kInt);
            started.emplace_back(group.all_gather_into_tensor_async(all, tensor), [=, size = group.size()] {
              for (int r = 0; r < size; ++r) {
                if (!all.narrow(0, r * count, count).eq((r + 1) * factor).all().item<bool>()) return false;
              }
              return true;
            });
            break;
          }
          case 2:
            started.emplace_back(group.barrier_async(), [] { return true; });
            break;
          default:
            if (own() % 3 == 0) {
              group.all_reduce(tensor);
              EXPECT_TRUE(tensor.eq(sum_of_ranks * factor).all().item<bool>());
              break;
            }
            started.emplace_back(group.all_reduce_async(tensor),
                                 [=] { return tensor.eq(sum_of_ranks * factor).all().item<bool>(); });
            break;
        }
        // Each rank waits when it likes.
        if (own() % 4 == 0) started[own() % started.size()].first->wait();
        if (own() % 8 == 0) (void)started.back().first->is_completed();
      }
      for (const auto& [work, is_right] : started) {
        work->wait();
        EXPECT_TRUE(is_right());
      }
    });
  }
}

TEST(RanksAsThreads, AnInterruptEndsWhatIsInFlightOnAllRanks) {
  for (const std::vector<int>& layout : layouts()) {
    std::atomic<int> ended{0};
    on_ranks(layout, [&](const ProcessGroup& group) {
      std::vector<std::shared_ptr<Work>> started;
      const bool stops = group.rank() == group.size() - 1;
      try {
        for (int step = 0; step < 1000; ++step) {
          if (stops && step == 20) group.impl().interrupt("enough");
          started.push_back(
              group.all_reduce_async(value_of(group.rank(), step % 2 == 0 ? 10 : 200000, step)));
          if (step % 5 == 4) started[static_cast<size_t>(step)]->wait();
        }
        for (const auto& work : started) work->wait();
        ADD_FAILURE() << "no error";
      } catch (const CommError& error) {
        ++ended;
      } catch (const StepFailedError& error) {
        EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos) << error.what();
        ++ended;
      }
    });
    EXPECT_EQ(ended, static_cast<int>(layout.size()));
  }
}

TEST(RanksAsThreads, AnInterruptEndsCallsThatBlockOnAllRanks) {
  for (const std::vector<int>& layout : layouts()) {
    std::atomic<int> ended{0};
    on_ranks(layout, [&](const ProcessGroup& group) {
      const bool stops = group.rank() == group.size() - 1;
      try {
        for (int step = 0; step < 1000; ++step) {
          if (stops && step == 20) {
            std::this_thread::sleep_for(120ms);  // the others wait
            group.impl().interrupt("enough");
          }
          group.all_reduce(value_of(group.rank(), step % 2 == 0 ? 10 : 200000, step));
        }
        ADD_FAILURE() << "no error";
      } catch (const CommError& error) {
        ++ended;
      } catch (const StepFailedError& error) {
        EXPECT_NE(std::string(error.what()).find("enough"), std::string::npos) << error.what();
        ++ended;
      }
    });
    EXPECT_EQ(ended, static_cast<int>(layout.size()));
  }
}

TEST(RanksAsThreads, ALeadersCallDoesItsOperationItself) {
  on_each({0, 0, 1}, [](const Rank& rank) {
    const int sum = 6;
    constexpr int kSteps = 20, kMostOthers = 4;
    int by_others = 0;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor tensor = value_of(rank.group.rank(), step % 2 == 0 ? 10 : 200000, 0);
      rank.group.all_reduce(tensor);
      EXPECT_TRUE(tensor.eq(sum).all().item<bool>());
      if (rank.is_leader && rank.cables.last_sender(rank.machine) != std::this_thread::get_id()) ++by_others;
    }
    // The queue's thread takes an operation that it finds when it begins, or looks, before its caller does.
    EXPECT_LE(by_others, kMostOthers);
    // The other ranks do not depend on when this one waits.
    const at::Tensor tensor = value_of(rank.group.rank(), 10, 0);
    const auto work = rank.group.all_reduce_async(tensor);
    while (!work->is_completed()) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(tensor.eq(sum).all().item<bool>());
    if (rank.is_leader) EXPECT_NE(rank.cables.last_sender(rank.machine), std::this_thread::get_id());
  });
}

TEST(RanksAsThreads, ASmallOperationStaysBehindLargeOnes) {
  for (const std::vector<int>& layout : layouts()) {
    on_ranks(layout, [](const ProcessGroup& group) {
      const int sum = group.size() * (group.size() + 1) / 2;
      for (int step = 0; step < 10; ++step) {
        std::vector<at::Tensor> large;
        std::vector<std::shared_ptr<Work>> works;
        for (int i = 0; i < 3; ++i) {
          large.push_back(value_of(group.rank(), 300000, i));
          works.push_back(group.all_reduce_async(large.back()));
        }
        const at::Tensor small = value_of(group.rank(), 10, 4);
        group.all_reduce(small);
        EXPECT_TRUE(small.eq(sum * 5).all().item<bool>());
        for (size_t i = 0; i < large.size(); ++i) {
          EXPECT_TRUE(works[i]->is_completed()) << "it was called earlier";
          works[i]->wait();
          EXPECT_TRUE(large[i].eq(sum * static_cast<int>(i + 1)).all().item<bool>());
        }
      }
    });
  }
}

/// Which of the two threads' calls comes first differs from rank to rank, so the calls are alike.
TEST(RanksAsThreads, TwoThreadsOfARankCallAtOnce) {
  for (const std::vector<int>& layout : layouts()) {
    on_ranks(layout, [](const ProcessGroup& group) {
      const int sum = group.size() * (group.size() + 1) / 2;
      const auto call = [&](bool is_second) {
        for (int step = 0; step < 100; ++step) {
          const at::Tensor tensor = value_of(group.rank(), 1000, 0);
          if (is_second && step % 4 == 0) {
            group.all_reduce_async(tensor)->wait();
          } else {
            group.all_reduce(tensor);
          }
          EXPECT_TRUE(tensor.eq(sum).all().item<bool>());
        }
      };
      std::thread second([&] {
        try {
          call(/*is_second=*/true);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << group.rank() << ": " << error.what();
        }
      });
      call(/*is_second=*/false);
      second.join();
    });
  }
}

/// Rank 2 waits in a call, and says so although its call works at the operation: the error is about rank 3 alone.
TEST(RanksAsThreads, ATimeoutInACallNamesTheRankThatIsLate) {
  std::atomic<int> ended{0};
  on_ranks({0, 0, 1, 1}, [&](const ProcessGroup& group) {
    if (group.rank() == 3) {
      while (ended < 3) std::this_thread::sleep_for(1ms);
      return;
    }
    const auto timeout = group.rank() == 0 ? std::chrono::milliseconds(500) : kTimeout;
    try {
      group.all_reduce(value_of(group.rank(), 10, 0), {.timeout = timeout});
      ADD_FAILURE() << "no error";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.missing_ranks(), std::vector<int>{3}) << error.what();
    } catch (const CommError& error) {
      ADD_FAILURE() << "rank " << group.rank() << ": " << error.what();
    }
    ++ended;
  });
}

/// A rank that goes while works are held and run: its leader's thread ends with it.
TEST(RanksAsThreads, GroupsThatGoWhileOperationsRun) {
  for (int round = 0; round < 5; ++round) {
    on_ranks({0, 0, 1, 1}, [](const ProcessGroup& group) {
      std::vector<std::shared_ptr<Work>> started;
      for (int step = 0; step < 5; ++step)
        started.push_back(group.all_reduce_async(value_of(group.rank(), 100000, step)));
      group.destroy();
      for (const auto& work : started) work->wait();
    });
  }
}

}  // namespace
}  // namespace lockstep
