// Operations that nobody waits for: their results are there all the same, whatever the layout of the tensors.
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;
using lockstep::testing::world;

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = std::shared_ptr<Work>;
constexpr int64_t kCount = 5;
constexpr float kUntouched = -1;

at::Tensor filled(double value) { return at::full({kCount}, value, at::kFloat); }
/// A column: its elements do not lie one after another.
at::Tensor strided(double value = kUntouched) {
  return at::full({kCount, 2}, value, at::kFloat).select(1, 0);
}

/// Operations of a group that have been started, each with what its outputs get. Nobody waits for them here.
class Unwaited {
 public:
  explicit Unwaited(ProcessGroup group) : group_(std::move(group)) {}

  /// One of each kind that has outputs of any layout.
  void start_all() {
    const int size = group_.size(), self = group_.rank(), last = size - 1;
    Tensors gathered;
    for (int r = 0; r < size; ++r) gathered.push_back(output(r + 1));
    works_.push_back(group_.all_gather_async(gathered, filled(self + 1)));
    Tensors exchanged, given;
    for (int r = 0; r < size; ++r) {
      exchanged.push_back(output(10 * r + self));
      given.push_back(filled(10 * self + r));
    }
    works_.push_back(group_.all_to_all_async(exchanged, given));
    const at::Tensor sum = output(size * (size + 1) / 2.0);
    sum.fill_(self + 1);
    works_.push_back(group_.all_reduce_async(sum));
    const at::Tensor sent = output(last + 1);
    if (self == last) sent.fill_(last + 1);
    works_.push_back(group_.broadcast_async(sent, {.src = last}));
    // Contiguous ones, whose parts come together late over several machines.
    const at::Tensor whole = at::full({size * kCount}, kUntouched, at::kFloat);
    for (int r = 0; r < size; ++r) expect(whole.narrow(0, r * kCount, kCount), 10 * r + self);
    const at::Tensor all_given = at::zeros({size * kCount});
    for (int r = 0; r < size; ++r) all_given.narrow(0, r * kCount, kCount).fill_(10 * self + r);
    works_.push_back(group_.all_to_all_single_async(whole, all_given));
    Tensors at_root, parts;
    if (self == last) {
      for (int r = 0; r < size; ++r) at_root.push_back(output(r + 7));
      for (int r = 0; r < size; ++r) parts.push_back(filled(3 * r));
    }
    works_.push_back(group_.gather_async(at_root, filled(self + 7), {.dst = last}));
    works_.push_back(group_.scatter_async(output(3 * self), parts, {.src = last}));
    works_.push_back(group_.reduce_scatter_tensor_async(output(size), at::full({size * kCount}, 1.0)));
  }

  void drop() { works_.clear(); }
  const std::vector<WorkPtr>& works() const { return works_; }
  const Tensors& outputs() const { return outputs_; }
  void forget_outputs() { outputs_.clear(); }

  bool are_there() const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (!outputs_[i].equal(expected_[i])) return false;
    }
    return true;
  }
  /// When this rank has waited for a later operation, with `wait`. Gloo's threads may be later.
  void check(const std::function<void()>& wait) const {
    wait();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (group_.backend_name() != "lockstep" && !are_there() &&
           std::chrono::steady_clock::now() < deadline) {
      group_.progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const lockstep::testing::ScopedCase scope("output " + std::to_string(i));
      CHECK_EQUAL(outputs_[i], expected_[i]);
    }
  }

 private:
  void expect(const at::Tensor& tensor, double value) {
    outputs_.push_back(tensor);
    expected_.push_back(filled(value));
  }
  at::Tensor output(double value) {
    const at::Tensor tensor = strided();
    expect(tensor, value);
    return tensor;
  }
  ProcessGroup group_;
  std::vector<WorkPtr> works_;
  Tensors outputs_, expected_;
};

TEST(Unwaited, DroppedBeforeABarrier) {
  const World world = lockstep::testing::world();
  for (int round = 0; round < 3; ++round) {
    Unwaited unwaited(world);
    unwaited.start_all();
    unwaited.drop();
    unwaited.check([&] { world.barrier(); });
  }
}

/// Large ones go block by block, for which each rank needs the others again and again.
TEST(Unwaited, LargeOnesBeforeASmallOne) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  constexpr int64_t kLarge = int64_t{1} << 18;
  for (int round = 0; round < 5; ++round) {
    Tensors outputs, inputs;
    for (int r = 0; r < size; ++r) {
      outputs.push_back(at::full({kLarge, 2}, kUntouched, at::kFloat).select(1, 0));
      inputs.push_back(at::full({kLarge}, 10.0 * self + r, at::kFloat));
    }
    const at::Tensor whole = at::full({size * kLarge}, kUntouched, at::kFloat), all = at::cat(inputs);
    world.all_to_all_async(outputs, inputs);
    world.all_to_all_single_async(whole, all);
    const WorkPtr last = world.barrier_async();
    if (round % 2 == 0) {
      last->wait();
    } else {
      world.all_reduce(filled(1));
    }
    if (world.backend_name() != "lockstep") world.barrier();
    for (int r = 0; r < size; ++r) {
      const at::Tensor expected = at::full({kLarge}, 10.0 * r + self, at::kFloat);
      CHECK_EQUAL(whole.narrow(0, r * kLarge, kLarge), expected);
      if (world.backend_name() == "lockstep") CHECK_EQUAL(outputs[static_cast<size_t>(r)], expected);
    }
  }
}

TEST(Unwaited, DroppedBeforeOtherBlockingOperations) {
  const World world = lockstep::testing::world();
  const auto ways = std::vector<std::function<void()>>{
      [&] { world.all_reduce(filled(1)); },
      [&] { world.all_reduce(strided(1)); },
      [&] { world.all_reduce(filled(1), {.algorithm = AllReduceAlgorithm::RING}); },
      [&] { world.broadcast(filled(1)); },
      [&] { world.all_gather(filled(1)); },
      [&] { world.monitored_barrier(); },
      [&] { world.all_gather_bytes("x"); },
  };
  for (const auto& way : ways) {
    Unwaited unwaited(world);
    unwaited.start_all();
    unwaited.drop();
    unwaited.check(way);
  }
}

TEST(Unwaited, OnlyTheLastIsWaitedFor) {
  const World world = lockstep::testing::world();
  Unwaited unwaited(world);
  unwaited.start_all();
  unwaited.check([&] { world.all_reduce_async(filled(1))->wait(); });
  for (const auto& work : unwaited.works()) work->wait();
}

TEST(Unwaited, LaterOneIsSeenToEnd) {
  const World world = lockstep::testing::world();
  Unwaited unwaited(world);
  unwaited.start_all();
  unwaited.drop();
  unwaited.check([&] {
    const auto later = world.barrier_async();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!later->is_completed()) CHECK(std::chrono::steady_clock::now() < deadline);
  });
}

TEST(Unwaited, KeptOnesWriteOnce) {
  const World world = lockstep::testing::world();
  Unwaited unwaited(world);
  unwaited.start_all();
  unwaited.check([&] { world.barrier(); });
  // The tensors are the program's again.
  for (const auto& output : unwaited.outputs()) output.fill_(100);
  for (const auto& work : unwaited.works()) {
    work->wait();
    CHECK(work->is_completed());
    CHECK(work->is_success());
  }
  world.barrier();
  for (const auto& output : unwaited.outputs()) CHECK_EQUAL(output, filled(100));
}

TEST(Unwaited, EachEndsForWhoOnlyPolls) {
  const World world = lockstep::testing::world();
  Unwaited unwaited(world);
  unwaited.start_all();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const auto& work : unwaited.works()) {
    while (!work->is_completed()) CHECK(std::chrono::steady_clock::now() < deadline);
  }
  unwaited.check([] {});
}

/// The later one of two that write the same tensor wins, however they are waited for.
TEST(Unwaited, TheLaterOneWins) {
  const World world = lockstep::testing::world();
  const auto size = static_cast<size_t>(world.size());
  const auto in = [&](double value) { return Tensors(size, filled(value)); };
  using Wait = std::function<void(const WorkPtr&)>;
  const std::vector<std::pair<std::string, Wait>> ways{
      {"wait", [](const WorkPtr& work) { work->wait(); }},
      {"wait for a time", [](const WorkPtr& work) { work->wait(std::chrono::seconds(30)); }},
      {"poll",
       [](const WorkPtr& work) {
         while (!work->is_completed()) std::this_thread::yield();
       }},
      {"future", [](const WorkPtr& work) { work->get_future()->wait(); }}};
  for (const auto& [name, wait] : ways) {
    SCOPED_CASE("{}", name);
    Tensors lists(size);
    for (at::Tensor& each : lists) each = filled(kUntouched);
    world.all_to_all_async(lists, in(1));
    world.all_to_all_async(lists, in(2));
    wait(world.all_to_all_async(lists, in(3)));
    for (const at::Tensor& each : lists) CHECK_EQUAL(each, filled(3));
    Tensors columns(size);
    for (at::Tensor& each : columns) each = strided();
    world.all_gather_async(columns, filled(1));
    wait(world.all_gather_async(columns, filled(2)));
    for (const at::Tensor& each : columns) CHECK_EQUAL(each, strided(2));
    // Waited for one after another: the first wait may see all of them end.
    std::vector<WorkPtr> works;
    for (const double value : {3.0, 4.0, 5.0})
      works.push_back(world.all_gather_async(columns, filled(value)));
    for (const WorkPtr& work : works) wait(work);
    for (const at::Tensor& each : columns) CHECK_EQUAL(each, strided(5));
  }
  Tensors lists(size);
  for (at::Tensor& each : lists) each = filled(kUntouched);
  world.all_to_all_async(lists, in(1));
  world.all_to_all(lists, in(2));
  for (const at::Tensor& each : lists) CHECK_EQUAL(each, filled(2));
  world.barrier();
}

/// The later one needs no copy by itself, so it would write before the earlier one has.
TEST(Unwaited, TheLaterOneWinsIfItWritesDirectly) {
  const World world = lockstep::testing::world();
  const auto size = static_cast<size_t>(world.size());
  const int last = world.size() - 1;
  const at::Tensor flat = at::cat(Tensors(size, filled(kUntouched)));
  const Tensors lists = flat.chunk(world.size());
  const auto in = [&](double value) { return Tensors(size, filled(value)); };
  const auto all_in = [&](double value) { return at::cat(in(value)); };
  using Later = std::function<WorkPtr()>;
  const std::vector<std::pair<std::string, Later>> later{
      {"all_gather", [&] { return world.all_gather_async(lists, filled(2)); }},
      {"all_gather_into_tensor", [&] { return world.all_gather_into_tensor_async(flat, filled(2)); }},
      {"all_to_all_single", [&] { return world.all_to_all_single_async(flat, all_in(2)); }},
      {"reduce_scatter",
       [&] {
         return world.reduce_scatter_tensor_async(flat, at::full({flat.numel() * world.size()}, 2.F),
                                                  {.op = ReduceOp::MAX});
       }},
      {"blocking",
       [&] {
         world.all_gather_into_tensor(flat, filled(2));
         return world.barrier_async();
       }},
  };
  for (const auto& [name, start] : later) {
    SCOPED_CASE("{}", name);
    for (const bool is_kept : {false, true}) {
      flat.fill_(kUntouched);
      WorkPtr earlier = world.all_to_all_async(lists, in(1));
      if (!is_kept) earlier.reset();
      start()->wait();
      world.barrier();
      CHECK_EQUAL(flat, all_in(2));
      earlier = world.all_to_all_single_async(flat, all_in(1));  // copies on some ranks of several machines
      if (!is_kept) earlier.reset();
      start()->wait();
      world.barrier();
      CHECK_EQUAL(flat, all_in(2));
    }
  }
  // What others send: the sender keeps what it has.
  const auto receives = [&](const char* name, double value, const Later& start) {
    SCOPED_CASE("{}", name);
    world.all_to_all_async(lists, in(1));
    start()->wait();
    world.barrier();
    if (world.rank() != last) CHECK_EQUAL(flat, all_in(value));
  };
  const at::Tensor source = all_in(3);
  const at::Tensor& target = world.rank() == last ? source : flat;
  receives("broadcast_async", 3, [&] { return world.broadcast_async(target, {.src = last}); });
  receives("broadcast", 3, [&] {
    world.broadcast(target, {.src = last});
    return world.barrier_async();
  });
}

/// An engine that works at two at once, as Gloo does, has the later one's result long before.
TEST(Unwaited, TheLaterOneWinsIfItIsMuchSmaller) {
  const World world = lockstep::testing::world();
  const int64_t large = int64_t{1} << 20, small = filled(0).numel() * world.size();
  const at::Tensor flat = at::empty({large * world.size()}, at::kFloat);
  const at::Tensor head = flat.narrow(0, 0, small), tail = flat.narrow(0, flat.numel() - small, small);
  using Later = std::function<WorkPtr(const at::Tensor&)>;
  const std::vector<std::pair<std::string, Later>> later{
      {"all_gather_into_tensor",
       [&](const at::Tensor& output) { return world.all_gather_into_tensor_async(output, filled(2)); }},
      {"reduce_scatter_tensor", [&](const at::Tensor& output) {
         const at::Tensor input = at::full({output.numel() * world.size()}, 2.F);
         return world.reduce_scatter_tensor_async(output, input, {.op = ReduceOp::MAX});
       }}};
  for (const auto& [name, start] : later) {
    for (const bool copies_meanwhile : {false, true}) {  // then the later ones copy, too
      SCOPED_CASE("{}, {}", name, copies_meanwhile ? "copies" : "direct");
      flat.fill_(kUntouched);
      Tensors columns(static_cast<size_t>(world.size()));
      for (at::Tensor& each : columns) each = strided();
      const WorkPtr earlier = world.all_gather_into_tensor_async(flat, at::full({large}, 1.F));
      if (copies_meanwhile) world.all_gather_async(columns, filled(3));
      start(head);
      start(tail)->wait();
      earlier->wait();
      world.barrier();
      CHECK_EQUAL(head, at::full({small}, 2.F));
      CHECK_EQUAL(tail, at::full({small}, 2.F));
      const int64_t between = flat.numel() - 2 * small;
      CHECK_EQUAL(flat.narrow(0, small, between), at::full({between}, 1.F));
    }
  }
}

/// A program that never waits holds no more than is in flight.
TEST(Unwaited, TensorsOfAProgramThatNeverWaitsGo) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.backend_name() == "lockstep" && world.size() > 1);
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> outputs;
  const auto count_alive = [&] {
    return std::count_if(outputs.begin(), outputs.end(), [](const auto& each) { return !each.expired(); });
  };
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 50; ++i) {
      const at::Tensor output = strided();
      outputs.emplace_back(output.getIntrusivePtr());
      world.broadcast_async(output, {.src = 0});
    }
    world.duplicate().barrier();  // of another group: nobody waits in this one
    CHECK(count_alive() < 400);
  }
  world.barrier();
  CHECK(count_alive() == 0);
}

TEST(Unwaited, TensorsGoBeforeTheEnd) {
  const World world = lockstep::testing::world();
  Unwaited unwaited(world);
  unwaited.start_all();
  unwaited.forget_outputs();
  unwaited.drop();
  world.barrier();
  world.barrier();
}

TEST(Unwaited, FailedOneAmongThem) {
  ONLY_IF(world().size() > 1 && world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  const auto size = static_cast<size_t>(world.size());
  Unwaited before(world), after(world);
  before.start_all();
  before.drop();
  // Rank 1 wants more of rank 0 than that sends.
  std::vector<int64_t> sends(size, 2), wants(size, 2);
  if (world.rank() == 1) wants[0] = 3;
  const int64_t wanted = std::accumulate(wants.begin(), wants.end(), int64_t{0});
  const at::Tensor output = at::full({wanted, 2}, kUntouched, at::kFloat).select(1, 0);
  const auto start = [&] {
    const at::Tensor input = at::full({2 * world.size()}, 5.0, at::kFloat);
    return world.all_to_all_single_async(output, input, wants, sends);
  };
  WorkPtr kept = start();
  start();
  after.start_all();
  after.drop();
  after.check([&] { world.barrier(); });
  before.check([] {});
  const bool fails = world.rank() == 1;
  CHECK_EQUAL(output, at::full({wanted}, fails ? kUntouched : 5.0, at::kFloat));
  if (fails) {
    check_throws<ValueError>([&] { kept->wait(); }, "which expects 3");
    CHECK(!kept->is_success());
  } else {
    kept->wait();
  }
}

// Gloo does not say that a message has ended to who does not wait for it.
TEST(Unwaited, Messages) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.size() > 1 && world.backend_name() == "lockstep");
  const int size = world.size(), self = world.rank();
  const at::Tensor received = strided();
  world.irecv(received, (self + size - 1) % size);
  const WorkPtr sent = world.isend(filled(self), (self + 1) % size);
  sent->wait();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const at::Tensor expected = filled((self + size - 1) % size);
  while (!received.equal(expected) && std::chrono::steady_clock::now() < deadline) {
    world.progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQUAL(received, expected);
  world.barrier();
}

TEST(Unwaited, GroupsEndMeanwhile) {
  const World world = lockstep::testing::world();
  for (const bool is_destroyed : {false, true}) {
    auto group = std::make_unique<ProcessGroup>(world.duplicate());
    Unwaited kept(*group), dropped(*group);
    kept.start_all();
    dropped.start_all();
    dropped.drop();
    for (const auto& work : kept.works()) work->wait();
    // By now the others have begun all of it.
    Unwaited late(*group);
    late.start_all();
    late.drop();
    if (is_destroyed && world.size() > 1) group->destroy();
    kept.check([] {});
    group.reset();
    world.barrier();
  }
}

TEST(Unwaited, Futures) {
  const World world = lockstep::testing::world();
  Unwaited unwaited(world);
  unwaited.start_all();
  std::atomic<int> calls{0};
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  for (const auto& work : unwaited.works()) {
    futures.push_back(work->get_future());
    futures.back()->addCallback([&](c10::ivalue::Future& /*future*/) { ++calls; });
  }
  unwaited.drop();
  unwaited.check([&] { world.barrier(); });
  for (const auto& future : futures) {
    future->wait();
    CHECK(!future->hasError());
  }
  // A callback may end a little after its future.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (calls < static_cast<int>(futures.size()) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(calls == static_cast<int>(futures.size()));
}

/// Each thread has a group, and starts and drops there; the works of one are waited for by the other.
TEST(Unwaited, Threads) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.backend_name() == "lockstep");
  const std::vector<ProcessGroup> groups{world.duplicate(), world.duplicate()};
  std::vector<std::exception_ptr> failures(groups.size());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < groups.size(); ++t) {
    threads.emplace_back([&, t] {
      try {
        for (int round = 0; round < 50; ++round) {
          auto unwaited = std::make_shared<Unwaited>(groups[t]);
          unwaited->start_all();
          std::jthread waiter([unwaited] {
            for (const auto& work : unwaited->works()) work->wait();
          });
          Unwaited later(groups[t]);
          later.start_all();
          later.drop();
          later.check([&] { groups[t].barrier(); });
          waiter.join();
          unwaited->check([] {});
        }
      } catch (...) {
        failures[t] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace
