// More operations in flight than a group has slots for, in groups that every rank enters in an order of its own.
//
// LOCKSTEP_FUZZ_SEED: the first random program's seed. LOCKSTEP_FUZZ_PROGRAMS: how many.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "tests/comm/numbers.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::world;

namespace {

using Random = std::mt19937_64;
using Tensors = std::vector<at::Tensor>;

size_t pick(Random& random, size_t below) { return random() % below; }

/// What `rank` gives to operation `number`: whole numbers, small enough that their sums are exact.
at::Tensor given(int number, int rank, int64_t count) {
  return lockstep::testing::periodic(count, 1009, [&](const at::Tensor& index) {
    return index.mul(rank + 1).add(number * 7 + rank).remainder(1009).to(at::kFloat);
  });
}

at::Tensor sum_of(int number, int ranks, int64_t count) {
  at::Tensor sum = given(number, 0, count);
  for (int r = 1; r < ranks; ++r) sum += given(number, r, count);
  return sum;
}

/// An operation that this rank has started.
struct Started {
  std::string what;
  std::shared_ptr<Work> work;
  at::Tensor result, expected;  // undefined where this rank gets none
};

class QueueProgram {
 public:
  explicit QueueProgram(uint64_t seed)
      : world_(lockstep::testing::world()),
        program_(seed),
        own_(seed * 31 + static_cast<uint64_t>(world_.rank()) + 1),
        name_("seed " + std::to_string(seed)) {
    for (size_t n = 1 + pick(program_, 4); n > 0; --n) groups_.push_back(world_.duplicate());
    if (groups_.size() > 2) groups_.back() = world_;
  }

  void run(size_t most) {
    std::vector<std::deque<std::function<void()>>> plans;
    for (const ProcessGroup& group : groups_) plans.push_back(plan_of(group, 1 + pick(program_, most)));
    while (std::any_of(plans.begin(), plans.end(), [](const auto& plan) { return !plan.empty(); })) {
      auto& plan = plans[pick(own_, plans.size())];
      for (size_t n = 1 + pick(own_, 120); n > 0 && !plan.empty(); --n) {
        plan.front()();
        plan.pop_front();
        if (pick(own_, 100) < 4) look_at_one();
      }
    }
    // Now that every rank starts all of them, whatever comes of it, each can be waited for.
    std::shuffle(started_.begin(), started_.end(), own_);
    while (!started_.empty()) {
      const Started last = std::move(started_.back());
      started_.pop_back();
      const bool has_result = last.expected.defined();
      if (!has_result && pick(own_, 4) == 0) continue;  // nobody waits for it, and it ends all the same
      last.work->wait();
      if (has_result && !last.result.equal(last.expected)) throw Error(last.what + ": wrong result");
    }
    world_.barrier();
  }

 private:
  int64_t random_count() {
    const size_t kind = pick(program_, 100);
    if (kind < 50) return 1 + static_cast<int64_t>(pick(program_, 18));
    if (kind < 80) return 1 + static_cast<int64_t>(pick(program_, 4096));
    if (kind < 95) return 4000 + static_cast<int64_t>(pick(program_, 30000));
    return 100000 + static_cast<int64_t>(pick(program_, 100000));
  }

  std::deque<std::function<void()>> plan_of(const ProcessGroup& group, size_t operations) {
    std::deque<std::function<void()>> plan;
    for (size_t n = 0; n < operations; ++n) {
      const size_t kind = pick(program_, 12);
      const int64_t count = random_count();
      const int root = static_cast<int>(pick(program_, static_cast<size_t>(group.size())));
      const int peer = static_cast<int>(pick(program_, static_cast<size_t>(group.size())));
      plan.emplace_back([=, this, number = ++number_] { start(group, kind, number, count, root, peer); });
    }
    return plan;
  }

  /// In ordinary memory or in the arena.
  at::Tensor make(const ProcessGroup& group, int64_t count) {
    const bool has_room = group.backend_name() == "lockstep" && !env::get_int("LOCKSTEP_ARENA_BYTES");
    const bool is_shared = has_room && pick(own_, 2) == 0;
    return is_shared ? group.empty_shared({count}, at::kFloat) : at::empty({count}, at::kFloat);
  }

  void start(const ProcessGroup& group, size_t kind, int number, int64_t count, int root, int peer) {
    const int size = group.size(), self = group.rank();
    const bool is_root = self == root;
    const int64_t part = std::max<int64_t>(1, count / size);
    Started item;
    item.what = name_ + ", rank " + std::to_string(self) + ", kind " + std::to_string(kind) + ", count " +
                std::to_string(count);
    const auto own = [&](int64_t elements) {
      const at::Tensor tensor = make(group, elements);
      tensor.copy_(given(number, self, elements));
      return tensor;
    };
    const auto blocks = [&](int64_t elements) {  // of everybody's
      Tensors all;
      for (int r = 0; r < size; ++r) all.push_back(given(number, r, elements));
      return all;
    };
    switch (kind) {
      case 0:
      case 1:
        item.result = own(count);
        item.work = group.all_reduce_async(item.result);
        item.expected = sum_of(number, size, count);
        break;
      case 2:
        item.result = own(count);
        item.work = group.reduce_async(item.result, {.dst = root});
        if (is_root) item.expected = sum_of(number, size, count);
        break;
      case 3:
        item.result = make(group, part);
        item.work = group.reduce_scatter_tensor_async(item.result, own(part * size));
        item.expected = sum_of(number, size, part * size).narrow(0, self * part, part);
        break;
      case 4:
        item.result = is_root ? own(count) : make(group, count);
        item.work = group.broadcast_async(item.result, {.src = root});
        item.expected = given(number, root, count);
        break;
      case 5: {
        const at::Tensor all = given(number, root, part * size);
        item.result = make(group, part);
        item.work = group.scatter_async(item.result, is_root ? all.chunk(size) : Tensors(), {.src = root});
        item.expected = all.narrow(0, self * part, part);
        break;
      }
      case 6: {
        item.result = make(group, part * size);
        item.work =
            group.gather_async(is_root ? item.result.chunk(size) : Tensors(), own(part), {.dst = root});
        if (is_root) item.expected = at::cat(blocks(part));
        break;
      }
      case 7:
        item.result = make(group, part * size);
        item.work = group.all_gather_into_tensor_async(item.result, own(part));
        item.expected = at::cat(blocks(part));
        break;
      case 8:
      case 9: {
        // With splits rank a sends to rank b (a + b) % 3 * part elements.
        std::vector<int64_t> sent, received;
        Tensors wanted;
        for (int r = 0; r < size; ++r) {
          const auto split = [&](int from, int to) { return kind == 8 ? part : (from + to) % 3 * part; };
          int64_t before = 0, total = 0;
          for (int to = 0; to < size; ++to) {
            if (to < self) before += split(r, to);
            total += split(r, to);
          }
          sent.push_back(split(self, r));
          received.push_back(split(r, self));
          wanted.push_back(given(number, r, total).narrow(0, before, received.back()));
        }
        int64_t gives = 0, gets = 0;
        for (int r = 0; r < size; ++r) {
          gives += sent[static_cast<size_t>(r)];
          gets += received[static_cast<size_t>(r)];
        }
        item.result = make(group, gets);
        item.work = kind == 8 ? group.all_to_all_single_async(item.result, own(gives))
                              : group.all_to_all_single_async(item.result, own(gives), received, sent);
        item.expected = at::cat(wanted);
        break;
      }
      case 10:
        item.work = group.barrier_async();
        break;
      default: {
        if (root == peer) return;  // Gloo has no messages to oneself
        const MessageOptions options{.tag = number % 1000};
        if (is_root) {
          item.result = own(count);
          item.work = group.isend(item.result, peer, options);
          item.expected = given(number, root, count);
        } else if (self == peer) {
          item.result = make(group, count);
          item.work = group.irecv(item.result, root, options);
          item.expected = given(number, root, count);
        } else {
          return;
        }
      }
    }
    started_.push_back(std::move(item));
  }

  /// At one that some rank may not have started yet.
  void look_at_one() {
    if (started_.empty()) return;
    const Started& item = started_[pick(own_, started_.size())];
    if (pick(own_, 2) == 0) {
      static_cast<void>(item.work->is_completed());
      return;
    }
    try {
      item.work->wait(std::chrono::milliseconds(1));
    } catch (const TimeoutError&) {
      return;  // it goes on
    }
  }

  World world_;
  Random program_;  // the same on all ranks
  Random own_;
  std::string name_;
  int number_ = 0;
  std::vector<ProcessGroup> groups_;
  std::vector<Started> started_;
};

TEST(Queue, RandomProgramsInAnotherOrderOnEachRank) {
  const bool is_gloo = world().backend_name() == "gloo";
  const int64_t first = env::get_int("LOCKSTEP_FUZZ_SEED").value_or(1);
  const int64_t programs = env::get_int("LOCKSTEP_FUZZ_PROGRAMS").value_or(is_gloo ? 1 : 6);
  for (int64_t seed = first; seed < first + programs; ++seed) {
    QueueProgram(static_cast<uint64_t>(seed)).run(is_gloo ? 100 : 300);
  }
}

// 2, 100 and 300 in each of two groups.
TEST(Queue, TwoGroupsInAnotherOrderOnEachRank) {
  const ProcessGroup first = world().duplicate(), second = world().duplicate();
  const int size = world().size(), self = world().rank();
  for (const int operations : {2, 100, 300}) {
    for (const int64_t count : {3, 1000, 20000}) {
      Tensors a, b;
      std::vector<std::shared_ptr<Work>> works;
      const auto start = [&](const ProcessGroup& group, Tensors& tensors) {
        for (int n = 0; n < operations; ++n) {
          tensors.push_back(given(n, self, count));
          works.push_back(group.all_reduce_async(tensors.back()));
        }
      };
      if (self % 2 == 1) start(first, a);
      start(second, b);
      if (self % 2 == 0) start(first, a);
      for (const auto& work : works) work->wait();
      for (int n = 0; n < operations; ++n) {
        const at::Tensor expected = sum_of(n, size, count);
        CHECK_EQUAL(a[static_cast<size_t>(n)], expected);
        CHECK_EQUAL(b[static_cast<size_t>(n)], expected);
      }
    }
  }
}

// Nobody waits for what was started; tensors live until it has ended, and a blocking collective comes behind it.
TEST(Queue, WhatNobodyWaitsForEndsToo) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  for (const int64_t count : {3, 1000, 20000}) {
    for (int n = 0; n < 200; ++n) static_cast<void>(world.all_reduce_async(given(n, self, count)));
    const at::Tensor last = given(5, self, count), value = given(7, self, count);
    const auto work = world.all_reduce_async(last);
    world.all_reduce(value);
    work->wait();
    CHECK_EQUAL(last, sum_of(5, size, count));
    CHECK_EQUAL(value, sum_of(7, size, count));
  }
}

// destroy() counts what is queued as started.
TEST(Queue, WhatIsQueuedGoesOnAfterDestroy) {
  ONLY_IF(world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  for (const int64_t count : {3, 1000, 20000}) {
    const ProcessGroup group = world.duplicate();
    if (size == 1) return;  // its own duplicate
    Tensors tensors;
    std::vector<std::shared_ptr<Work>> works;
    if (self % 2 == 1) world.barrier();
    for (int n = 0; n < 200; ++n) {
      tensors.push_back(given(n, self, count));
      works.push_back(group.all_reduce_async(tensors.back()));
    }
    group.destroy();
    if (self % 2 == 0) world.barrier();
    for (const auto& work : works) work->wait();
    for (int n = 0; n < 200; ++n) CHECK_EQUAL(tensors[static_cast<size_t>(n)], sum_of(n, size, count));
  }
}

}  // namespace
