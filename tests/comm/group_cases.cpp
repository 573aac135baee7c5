
#include <ATen/core/ivalue.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/device_mesh.h"
#include "lockstep/comm/objects.h"
#include "tests/comm/numbers.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;
using lockstep::testing::of;
using lockstep::testing::sum_of;
using lockstep::testing::world;
using nlohmann::json;

namespace {

std::vector<at::Tensor> empties(int count, at::IntArrayRef sizes) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(at::empty(sizes));
  return tensors;
}

/// Every second element of a tensor twice as large: results must be copied home.
at::Tensor strided(int64_t count) { return at::zeros({count, 2}).select(1, 1); }

bool has_progress_thread() { return env::get_bool(env::kProgressThread).value_or(false); }

TEST(Groups, AsyncForms) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank(), last = size - 1;
  for (const int64_t count : {0, 3, 2000, 90000}) {
    // All in flight together, ended in another order.
    const at::Tensor summed = of(self, count), reduced = of(self, count), sent = of(self, count);
    const at::Tensor copied = strided(count), block = strided(count), whole = at::empty({size * count});
    copied.copy_(sent);
    const auto lists = empties(size, {count});
    const auto gathered = self == last ? empties(size, {count}) : std::vector<at::Tensor>();
    std::vector<at::Tensor> parts;
    for (int r = 0; r < size && self == 0; ++r) parts.push_back(of(r + 7, count));
    const at::Tensor part = strided(count),
                     blocks = at::cat(std::vector<at::Tensor>(static_cast<size_t>(size), sent));
    const at::Tensor even = at::empty({size * count}), from_lists = at::empty({size * (size + 1), count});
    std::vector<int64_t> uneven;
    std::vector<at::Tensor> sends;
    for (int r = 0; r < size; ++r) {
      uneven.push_back(self + r);
      sends.push_back(at::full({self + r, count}, self * 10 + r, at::kFloat));
    }
    int64_t rows = 0;
    for (const int64_t n : uneven) rows += n;
    const at::Tensor swapped = at::empty({rows, count});
    std::vector<std::shared_ptr<Work>> all{
        world.all_reduce_async(summed),
        world.reduce_async(reduced, {.dst = last}),
        world.broadcast_async(copied, {.src = last}),
        world.all_gather_async(lists, sent),
        world.all_gather_into_tensor_async(whole, sent),
        world.gather_async(gathered, sent, {.dst = last}),
        world.scatter_async(part, parts),
        world.reduce_scatter_tensor_async(block, blocks),
        world.all_to_all_single_async(even, blocks),
        world.all_to_all_single_async(swapped, at::cat(sends), uneven, uneven),
        world.barrier_async(),
    };
    for (size_t i = all.size(); i-- > 0;) all[i]->wait();
    std::vector<int> everyone;
    for (int r = 0; r < size; ++r) everyone.push_back(r);
    CHECK_EQUAL(summed, sum_of(everyone, count));
    if (self == last) CHECK_EQUAL(reduced, sum_of(everyone, count));
    CHECK_EQUAL(copied, of(last, count));
    CHECK_EQUAL(part, of(self + 7, count));
    CHECK_EQUAL(block, sum_of(everyone, count));
    for (int r = 0; r < size; ++r) {
      CHECK_EQUAL(lists[static_cast<size_t>(r)], of(r, count));
      CHECK_EQUAL(whole.narrow(0, r * count, count), of(r, count));
      CHECK_EQUAL(even.narrow(0, r * count, count), of(r, count));
      if (self == last) CHECK_EQUAL(gathered[static_cast<size_t>(r)], of(r, count));
    }
    int64_t row = 0;
    for (int r = 0; r < size; ++r) {
      CHECK_EACH(swapped.narrow(0, row, self + r), r * 10 + self);
      row += self + r;
    }
  }
}

TEST(Groups, Coalesced) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  std::vector<int> everyone;
  for (int r = 0; r < size; ++r) everyone.push_back(r);
  std::vector<at::Tensor> tensors, inputs, outputs, blocks;
  for (const int64_t count : {1, 30, 0, 5000, 70000}) {
    tensors.push_back(of(self, count));
    inputs.push_back(of(self, count));
    outputs.push_back(at::empty({size * count}));
    blocks.push_back(at::empty({count}));
  }
  tensors.push_back(at::full({}, self, at::kLong));  // another dtype, no dimension
  world.all_reduce_coalesced(tensors);
  for (size_t i = 0; i < inputs.size(); ++i) CHECK_EQUAL(tensors[i], sum_of(everyone, inputs[i].numel()));
  CHECK_TRUE(tensors.back().item<int64_t>() == size * (size - 1) / 2);
  const auto gathered = world.all_gather_coalesced(inputs);
  world.all_gather_into_tensor_coalesced(outputs, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (int r = 0; r < size; ++r) CHECK_EQUAL(gathered[i][static_cast<size_t>(r)], of(r, inputs[i].numel()));
    CHECK_EQUAL(outputs[i], at::cat(gathered[i]));
  }
  world.reduce_scatter_tensor_coalesced(blocks, outputs);
  for (size_t i = 0; i < inputs.size(); ++i) CHECK_EQUAL(blocks[i], of(self, inputs[i].numel()) * size);
  check_throws<ValueError>([&] { world.all_gather_into_tensor_coalesced(outputs, tensors); },
                           "one output per input");
}

TEST(Groups, Works) {
  const World world = lockstep::testing::world();
  const at::Tensor tensor = of(world.rank(), 1000);
  const auto work = world.all_reduce_async(tensor);
  try {
    work->result();
    CHECK_TRUE(work->is_success());  // over machines the progress thread may have ended it
  } catch (const Error& error) {
    CHECK_TRUE(std::string(error.what()).find("wait() for it") != std::string::npos);
  }
  while (!work->is_completed()) std::this_thread::yield();
  CHECK_TRUE(work->is_success());
  CHECK_TRUE(work->exception() == nullptr);
  CHECK_TRUE(work->source_rank() == -1);
  CHECK_TRUE(work->result().size() == 1);
  CHECK_TRUE(work->result()[0].is_same(tensor));
  work->wait();
  work->wait(std::chrono::milliseconds(1));  // it has ended: no deadline can pass
  const auto future = world.all_reduce_async(of(world.rank(), 5))->get_future();
  if (!has_progress_thread()) CHECK_TRUE(future->completed());
  future->wait();
  CHECK_TRUE(!future->hasError());
  CHECK_TRUE(future->value().toTensorVector().size() == 1);
  if (world.backend_name() != "lockstep") return;
  // A handle lives on after its group's end; nobody need wait for another, large as its tensor may be.
  std::vector<int> everyone;
  for (int r = 0; r < world.size(); ++r) everyone.push_back(r);
  for (int round = 0; round < 3; ++round) {
    const ProcessGroup group = world.new_group(everyone);
    const at::Tensor strided = of(world.rank(), 90000).view({300, 300}).t();
    const at::Tensor shared = group.empty_shared({300000}, at::kFloat).copy_(of(world.rank(), 300000));
    const auto of_strided = group.all_reduce_async(strided), of_shared = group.all_reduce_async(shared);
    group.all_gather_async(empties(world.size(), {300000}), shared);
    group.destroy();
    check_throws<ValueError>([&] { group.barrier(); }, "was destroyed");
    of_shared->wait();
    while (!of_strided->is_completed()) std::this_thread::yield();
    CHECK_EQUAL(shared, sum_of(everyone, 300000));
    CHECK_EQUAL(strided.t().reshape({-1}), sum_of(everyone, 90000));
    of_strided->wait();
  }
}

/// Over machines a leader needs the others of its machine until the end of an operation that they have started, and left.
TEST(Groups, ARankThatGoesEndsWhatItHasStarted) {
  ONLY_IF(world().backend_name() == "lockstep" && world().local_world_size() < world().size());
  const World world = lockstep::testing::world();
  std::vector<int> everyone;
  for (int r = 0; r < world.size(); ++r) everyone.push_back(r);
  for (int round = 0; round < 3; ++round) {
    const ProcessGroup group = world.new_group(everyone);
    const auto lists = empties(world.size(), {300000});
    const at::Tensor own = of(world.rank(), 300000);
    if (world.local_rank() > 0) {
      group.all_gather_async(lists, own);
      continue;  // it goes before the leaders have begun
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    group.all_gather_async(lists, own)->wait();
    for (int r = 0; r < world.size(); ++r) CHECK_EQUAL(lists[static_cast<size_t>(r)], of(r, 300000));
  }
}

TEST(Groups, AbandonedWorks) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank(), next = (self + 1) % size,
            previous = (self + size - 1) % size;
  std::vector<int> everyone;
  for (int r = 0; r < size; ++r) everyone.push_back(r);
  for (int round = 0; round < 20; ++round) {
    // Neither the handle nor the tensor outlives the statement; the operations after it must not notice.
    world.all_reduce_async(world.empty_shared({50000}, at::kFloat).zero_());
    world.all_gather_async(empties(size, {3000}), of(self, 3000));
    if (size > 1 || world.backend_name() == "lockstep") world.isend(of(self, 2000), next);
    const at::Tensor tensor = of(self, 50000);
    world.all_reduce(tensor);
    CHECK_EQUAL(tensor, sum_of(everyone, 50000));
    if (size == 1 && world.backend_name() != "lockstep") continue;
    const at::Tensor received = at::empty({2000});
    world.recv(received, previous);
    CHECK_EQUAL(received, of(previous, 2000));
  }
}

TEST(Groups, Objects) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank(), last = size - 1;
  const auto object = [](int rank) {
    return json{{"rank", rank},
                {"pi", 3.25},
                {"text", std::string(static_cast<size_t>(rank) * 5000, 'x')},
                {"list", {1, -2, nullptr, true}},
                {"bytes", json::binary({0, 255, 7})}};
  };
  CHECK_TRUE(broadcast_object(world, self == last ? object(last) : json("ignored"), {.src = last}) ==
             object(last));
  const auto all = all_gather_object(world, object(self));
  for (int r = 0; r < size; ++r) CHECK_TRUE(all.at(static_cast<size_t>(r)) == object(r));
  const auto gathered = gather_object(world, object(self), {.dst = last});
  CHECK_TRUE(gathered.size() == (self == last ? static_cast<size_t>(size) : 0));
  for (size_t r = 0; r < gathered.size(); ++r) CHECK_TRUE(gathered[r] == object(static_cast<int>(r)));
  std::vector<json> parts;
  for (int r = 0; r < size && self == 0; ++r) parts.push_back(object(r * 2));
  CHECK_TRUE(scatter_object(world, parts) == object(self * 2));
  check_throws<ValueError>([&] { scatter_object(world, std::vector<json>(static_cast<size_t>(size) + 1)); },
                           "one string per rank at src");
  if (size == 1) return;
  if (self != 0) {
    send_object(world, object(self), 0, {.tag = 9});
  } else {
    for (int n = 1; n < size; ++n) {
      int source = -1;
      const json received = recv_object(world, std::nullopt, {.tag = 9}, &source);
      CHECK_TRUE(received == object(source));
    }
  }
  // Bytes that are no object: the receiver is told who sent them.
  if (self == 1) world.send_bytes("\xFFgarbage", 0);
  if (self == 0)
    check_throws<ValueError>([&] { recv_object(world, 1); }, "rank 1 sent 8 bytes that are no object");
}

TEST(Groups, NewGroups) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  // Every second rank, in any order of naming.
  std::vector<int> even;
  for (int r = (size - 1) / 2 * 2; r >= 0; r -= 2) even.push_back(r);
  const ProcessGroup group = world.new_group(even);
  CHECK_TRUE(group.is_member() == (self % 2 == 0));
  CHECK_TRUE(group.size() == (size + 1) / 2);
  for (int r = 0; r < group.size(); ++r) {
    CHECK_TRUE(group.get_global_rank(r) == 2 * r);
    CHECK_TRUE(group.get_group_rank(2 * r) == r);
  }
  check_throws<ValueError>([&] { group.get_group_rank(1); }, "global rank 1 is not in the group");
  check_throws<ValueError>([&] { group.get_global_rank(-1); }, "outside the group");
  if (group.is_member()) {
    CHECK_TRUE(group.rank() == self / 2);
    CHECK_TRUE(group.timeout() == world.timeout());
    for (const int64_t count : {3, 3000, 80000}) {
      const at::Tensor tensor = of(self, count);
      group.all_reduce(tensor);
      CHECK_EQUAL(tensor, sum_of(even, count));
    }
    // A group of a group: its own last rank alone, and all of it with another deadline.
    const ProcessGroup alone = group.new_group({group.size() - 1});
    CHECK_TRUE(alone.is_member() == (group.rank() == group.size() - 1));
    CHECK_TRUE(alone.get_global_rank(0) == even.front());
    if (alone.is_member()) alone.barrier();
    std::vector<int> whole;
    for (int r = 0; r < group.size(); ++r) whole.push_back(r);
    const ProcessGroup again = group.new_group(whole, {.timeout = std::chrono::seconds(77)});
    CHECK_TRUE(again.timeout() == std::chrono::seconds(77));
    CHECK_TRUE(again.global_ranks() == group.global_ranks());
    const at::Tensor token = at::full({1}, again.rank(), at::kFloat);
    const auto send = again.isend(token, (again.rank() + 1) % again.size());
    if (again.size() > 1) {
      const at::Tensor received = at::zeros({1});
      CHECK_TRUE(again.recv(received) == (again.rank() + again.size() - 1) % again.size());
    }
    again.barrier();
  } else {
    const at::Tensor tensor = of(self, group.size()), part = of(self, 1);
    for (const std::function<void()>& operation : std::initializer_list<std::function<void()>>{
             [&] { group.barrier(); }, [&] { group.monitored_barrier(); }, [&] { group.all_reduce(tensor); },
             [&] { group.all_reduce_async(tensor); }, [&] { group.reduce(tensor); },
             [&] { group.broadcast(tensor); }, [&] { group.all_gather(tensor); },
             [&] { group.all_gather_into_tensor(tensor, part); }, [&] { group.gather(tensor); },
             [&] { group.scatter(part, {}); }, [&] { group.reduce_scatter_tensor(part, tensor); },
             [&] { group.all_to_all_single(tensor, tensor.clone()); }, [&] { group.send(tensor, 0); },
             [&] { group.recv(tensor, 0); }, [&] { group.isend(tensor, 0); },
             [&] { group.all_gather_bytes("x"); }, [&] { group.broadcast_bytes("x"); },
             [&] { group.new_group({0}); }}) {
      check_throws<ValueError>(operation, "this rank is not a member of the process group of ranks 0");
    }
    check_throws<ValueError>([&] { group.backend(); }, "not a member of the process group");
  }
  // Operations of both groups in flight together.
  const at::Tensor outer = of(self, 40000), inner = of(self, 40000);
  const auto outer_work = world.all_reduce_async(outer);
  const auto inner_work = group.is_member() ? group.all_reduce_async(inner) : nullptr;
  outer_work->wait();
  if (inner_work) inner_work->wait();
  if (inner_work) CHECK_EQUAL(inner, sum_of(even, 40000));
  for (int divisor = 1; divisor <= size; ++divisor) {
    if (size % divisor != 0) continue;
    const ProcessGroup part = world.new_subgroups(divisor);
    CHECK_TRUE(part.size() == divisor);
    CHECK_TRUE(part.rank() == self % divisor);
    const at::Tensor tensor = of(self, 100);
    part.all_reduce(tensor);
    CHECK_EQUAL(tensor, sum_of(part.global_ranks(), 100));
  }
  world.barrier();
}

TEST(Groups, GroupRefusals) {
  ONLY_IF(world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  check_throws<ValueError>([&] { world.new_group({}); }, "at least one rank");
  check_throws<ValueError>([&] { world.new_group({0, size}); }, "the parent group has the ranks 0 to");
  check_throws<ValueError>([&] { world.new_group({0, 0}); }, "a rank may be named once");
  check_throws<ValueError>([&] { world.split_group({{0}, {0}}); }, "a rank may be named once");
  check_throws<ValueError>([&] { world.new_subgroups(size + 1); }, "cannot be divided into groups of");
  if (size > 1) {
    check_throws<ValueError>([&] { world.new_group({self}); }, "rank 0 gave [0]");
    const std::vector<std::vector<int>> mine =
        self == 0 ? std::vector<std::vector<int>>{{0}, {1}} : std::vector<std::vector<int>>{{0, 1}};
    check_throws<ValueError>([&] { world.split_group(mine); }, "rank 0 gave [0], [1]");
  }
  std::vector<int> everyone;
  for (int r = 0; r < size; ++r) everyone.push_back(r);
  const ProcessGroup group = world.new_group(everyone);
  const ProcessGroup copy = group;  // NOLINT(performance-unnecessary-copy-initialization): a copy is tested
  const at::Tensor tensor = group.empty_shared({3000}, at::kFloat).fill_(1);
  group.all_reduce(tensor);
  group.barrier();
  group.destroy();
  group.destroy();  // twice is once
  check_throws<ValueError>([&] { copy.all_reduce(tensor); }, "this process group was destroyed");
  CHECK_TRUE(copy.size() == size);
  CHECK_TRUE(copy.rank() == self);
  CHECK_EACH(tensor, size);  // tensors outlive their group
  check_throws<ValueError>([&] { world.recv(at::zeros({3}), size); }, "outside the group");
  check_throws<ValueError>([&] { world.send(at::zeros({3}), -1); }, "outside the group");
  check_throws<ValueError>(
      [&] {
        world.scatter(at::zeros({3}), {at::zeros({3}), at::zeros({2})}, {.src = self});
      },
      "scatter");
  check_throws<ValueError>([&] { world.reduce(at::zeros({3}), {.dst = 99}); }, "reduce: dst 99");
  check_throws<ValueError>([&] { world.all_reduce(at::empty({3}, at::TensorOptions().device(at::kMeta))); },
                           "on the CPU");
  check_throws<std::exception>([&] { world.all_reduce(at::Tensor()); }, "");
  check_throws<std::exception>([&] { world.broadcast(at::zeros({3, 3}).to_sparse()); }, "");
  std::vector<int64_t> splits(static_cast<size_t>(size), 0);
  splits.front() = 3;
  splits.back() -= size > 1 ? 1 : 0;
  if (size > 1) {
    check_throws<ValueError>([&] { world.all_to_all_single(at::zeros({2}), at::zeros({2}), splits, splits); },
                             "0 or more");
  }
  // Nothing of all this has harmed the world.
  const at::Tensor sum = of(self, 10);
  world.all_reduce(sum);
  CHECK_EQUAL(sum, sum_of(everyone, 10));
}

TEST(Groups, Mesh) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  const DeviceMesh line = init_device_mesh({size});
  CHECK_TRUE(line.ndim() == 1);
  CHECK_TRUE(line.get_local_rank(0) == self);
  CHECK_TRUE(line.size() == size);
  check_throws<ValueError>([&] { init_device_mesh({size + 1}); }, "cannot hold");
  check_throws<ValueError>([&] { init_device_mesh({size}, {"a", "b"}); }, "mesh_dim_names");
  check_throws<ValueError>([&] { line.get_group("x"); }, "no dimension \"x\"");
  if (size % 2 != 0) return;
  const DeviceMesh grid = init_device_mesh({2, size / 2}, {"replicate", "shard"});
  CHECK_TRUE(grid.get_coordinate() == std::vector<int64_t>({self / (size / 2), self % (size / 2)}));
  CHECK_TRUE(grid.rank_at(grid.get_coordinate()) == self);
  CHECK_TRUE(grid.size(1) == size / 2);
  const ProcessGroup& shard = grid.get_group("shard");
  const ProcessGroup& replicate = grid.get_group(0);
  CHECK_TRUE(shard.size() == size / 2);
  CHECK_TRUE(replicate.size() == 2);
  CHECK_TRUE(replicate.get_global_rank(1) - replicate.get_global_rank(0) == size / 2);
  // Summing along one dimension and then the other is a sum over all.
  const at::Tensor tensor = at::full({7}, self, at::kLong);
  shard.all_reduce(tensor);
  replicate.all_reduce(tensor);
  CHECK_EACH(tensor, size * (size - 1) / 2);
  check_throws<ValueError>([&] { grid.rank_at({2, 0}); }, "outside dimension 0");
}

TEST(Groups, ManyGroups) {
  ONLY_IF(world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  std::vector<int> everyone;
  for (int r = 0; r < world.size(); ++r) everyone.push_back(r);
  for (int n = 0; n < 200; ++n) {
    const ProcessGroup group = world.new_group(everyone);
    const at::Tensor tensor = of(world.rank(), 9000);
    group.all_reduce(tensor);
    CHECK_EQUAL(tensor, sum_of(everyone, 9000));
    if (n % 2 == 0) group.destroy();  // or by its last copy
  }
  std::vector<ProcessGroup> kept;
  world.barrier();
  const auto fill = [&] {
    for (int n = 0; n < 600; ++n) kept.push_back(world.new_group(everyone));
  };
  check_throws<Error>(
      fill, world.local_rank() == 0 ? "process groups of this node are in use" : "no room for another");
  CHECK_TRUE(kept.size() > 500);
  kept.clear();
  world.barrier();
  world.new_group(everyone).barrier();
}

TEST(Groups, LateForMonitoredBarrier) {
  ONLY_IF(world().size() == 3);
  const World world = lockstep::testing::world();
  world.monitored_barrier();
  world.barrier();
  const auto deadline = std::chrono::milliseconds(400);
  if (world.rank() == 0) {
    check_throws<TimeoutError>([&] { world.monitored_barrier({.timeout = deadline}); },
                               world.backend_name() == "gloo" || world.local_world_size() < 3
                                   ? "Ranks 1, 2 failed"
                                   : ", rank 2 (pid");
    check_throws<CommError>([&] { world.barrier({.timeout = deadline}); }, "");
  } else {
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
  destroy();
}

TEST(Groups, LateForASum) {
  ONLY_IF(world().local_world_size() == 2 && world().size() == 2 && world().backend_name() == "lockstep");
  destroy();  // operations are counted from 1 again
  const World world = lockstep::testing::world();
  world.barrier();
  if (world.rank() != 0) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    check_throws<TimeoutError>([&] { world.barrier(); }, "all_reduce #2");
    destroy();
    return;
  }
  std::string message;
  try {
    world.all_reduce(at::zeros({3, 5}), {.timeout = std::chrono::milliseconds(300)});
  } catch (const TimeoutError& error) {
    message = error.what();
  }
  for (const char* part : {"all_reduce #2 (float32[15], SUM) waited 300 ms for rank 1 (pid ",
                           "last operation barrier of 0 bytes, its 1st)", "shape [3, 5]"}) {
    if (message.find(part) == std::string::npos)
      throw std::runtime_error("no \"" + std::string(part) + "\" in: " + message);
  }
  destroy();
}

/// Until `condition`, without a call of Lockstep.
void sleep_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    CHECK_TRUE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(ProgressThread, CompletesFuturesAndServesReceivers) {
  ONLY_IF(has_progress_thread() && world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  const int self = world.rank(), size = world.size();
  const at::Tensor large = at::full({int64_t{4} << 20}, self == 0 ? 3.0 : 0.0);
  const at::Tensor strided = at::full({300, 2}, self).select(1, 0);
  const at::Tensor received = at::empty({50000});
  const auto send = world.isend(at::full({50000}, static_cast<float>(self)), (self + 1) % size);
  std::atomic<int> ended = 0;
  std::vector<std::shared_ptr<Work>> works = {world.broadcast_async(large, {.src = 0}),
                                              world.all_reduce_async(strided),
                                              world.irecv(received, (self + size - 1) % size)};
  for (auto& work : works) {
    const auto future = work->get_future();
    if (!future->completed()) CHECK_TRUE(work->get_future().get() == future.get() || future->completed());
    future->addCallback([&](c10::ivalue::Future& done) { ended += done.hasError() ? 0 : 1; });
    work.reset();  // nobody waits for it
  }
  sleep_until([&] { return ended == 3; });
  CHECK_EACH(large, 3.0);
  CHECK_EACH(strided, size * (size - 1) / 2);
  CHECK_EACH(received, (self + size - 1) % size);
  send->wait();
  world.barrier();
}

TEST(ProgressThread, TellsFuturesOfFailures) {
  ONLY_IF(has_progress_thread() && world().backend_name() == "lockstep" && world().size() > 1);
  const World world = lockstep::testing::world();
  std::vector<int> everyone;
  for (int r = 0; r < world.size(); ++r) everyone.push_back(r);
  const ProcessGroup group = world.new_group(everyone, {.timeout = std::chrono::milliseconds(300)});
  if (world.rank() == 0) {
    const auto work = group.all_reduce_async(of(0, 10));
    const auto future = work->get_future();
    sleep_until([&] { return future->completed(); });
    CHECK_TRUE(future->hasError());
    CHECK_TRUE(future->tryRetrieveErrorMessage().find("waited 300 ms") != std::string::npos);
    check_throws<TimeoutError>([&] { work->wait(); }, "waited 300 ms");
  }
  world.barrier();
}

}  // namespace
