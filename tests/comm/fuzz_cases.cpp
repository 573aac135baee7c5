// Random programs of what users call: several groups at once, operations that end by wait(), by polling, by a
// future or are left to themselves, and objects in between. Every rank derives the same program from a seed
// and ends its operations in an order of its own.
//
// LOCKSTEP_FUZZ_SEED: the first program's seed. LOCKSTEP_FUZZ_PROGRAMS: how many. LOCKSTEP_FUZZ_RESULTS: a folder in which each
// rank writes what its sums of floating-point numbers came to (fuzz_bits_test.py).
#include <ATen/core/ivalue.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "lockstep/base/env.h"
#include "lockstep/comm/objects.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using nlohmann::json;

namespace {

using Random = std::mt19937_64;
size_t pick(Random& random, size_t below) { return random() % below; }

/// What global rank `rank` gives to operation `number`.
at::Tensor given(uint64_t number, int rank, int64_t count) {
  return at::arange(count, at::kLong).mul(rank + 1).add(static_cast<int64_t>(number % 1000) * 7 + rank);
}

at::Tensor sum_of(uint64_t number, const std::vector<int>& ranks, int64_t count) {
  at::Tensor sum = given(number, ranks[0], count);
  for (size_t r = 1; r < ranks.size(); ++r) sum += given(number, ranks[r], count);
  return sum;
}

json object_of(uint64_t number, int rank) {
  return {{"number", number}, {"rank", rank}, {"list", std::vector<int>(number % 300, rank)}};
}

class Program {
 public:
  explicit Program(uint64_t seed)
      : world_(lockstep::testing::world()),
        program_(seed),
        own_(seed * 31 + static_cast<uint64_t>(world_.rank())),
        name_("seed " + std::to_string(seed)) {}

  void run(int steps) {
    std::vector<int> everyone(static_cast<size_t>(world_.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    groups_ = {world_};
    for (size_t n = 1 + pick(program_, 4); n > 0; --n) {
      auto some = everyone;
      std::shuffle(some.begin(), some.end(), program_);
      some.resize(1 + pick(program_, some.size()));
      groups_.push_back(world_.new_group(some));
    }
    for (step_ = 0; step_ < steps; ++step_) {
      const ProcessGroup& group = groups_[pick(program_, groups_.size())];
      const size_t burst = pick(program_, 20) == 0 ? 80 : 1;
      for (size_t i = 0; i < burst; ++i) start(group, burst > 1);
      while (items_.size() > 120 || (!items_.empty() && pick(own_, 3) == 0)) end_one();
    }
    while (!items_.empty()) end_one();
    world_.barrier();
  }

 private:
  struct Item {
    std::shared_ptr<Work> work;
    at::Tensor result, expected, given;
    std::string what;
  };

  void add(const std::string& what, std::shared_ptr<Work> work, at::Tensor result, at::Tensor expected,
           at::Tensor given = {}) {
    items_.push_back({std::move(work), std::move(result), std::move(expected), std::move(given),
                      name_ + ", step " + std::to_string(step_) + ": " + what});
  }

  void check(bool condition, const std::string& what) const {
    if (!condition) throw std::runtime_error(name_ + ", step " + std::to_string(step_) + ": " + what);
  }

  /// Makes the same choices on all ranks, members or not.
  void start(const ProcessGroup& group, bool small) {
    const uint64_t number = ++number_;
    const size_t kind = pick(program_, small ? 4 : 10);
    constexpr int64_t kCounts[] = {0, 1, 8, 100, 2000, 20000, 100000, 300000};
    const int64_t count = kCounts[pick(program_, small ? 4 : std::size(kCounts))];
    const int ranks = group.size();
    const int root = static_cast<int>(pick(program_, static_cast<size_t>(ranks)));
    const int tag = static_cast<int>(pick(program_, 3));
    const bool in_segment = pick(own_, 2) == 0;
    if (!group.is_member()) return;
    const std::vector<int>& members = group.global_ranks();
    const int self = world_.rank();
    const auto copy_of = [&](const at::Tensor& tensor) {
      return in_segment ? group.empty_shared(tensor.sizes(), tensor.scalar_type()).copy_(tensor) : tensor;
    };
    const at::Tensor mine = copy_of(given(number, self, count));
    const std::string text = " of " + std::to_string(count) + " in a group of " + std::to_string(ranks);
    switch (kind) {
      case 0:
        return add("all_reduce" + text, group.all_reduce_async(mine), mine, sum_of(number, members, count));
      case 1:
        return add("broadcast" + text, group.broadcast_async(mine, {.src = root}), mine,
                   given(number, members[static_cast<size_t>(root)], count));
      case 2: {
        const int next = (group.rank() + 1) % ranks, previous = (group.rank() + ranks - 1) % ranks;
        const at::Tensor received = copy_of(at::empty({count}, at::kLong));
        add("isend" + text, group.isend(mine, next, {.tag = tag}), mine, given(number, self, count));
        return add("irecv" + text, group.irecv(received, previous, {.tag = tag}), received,
                   given(number, members[static_cast<size_t>(previous)], count));
      }
      case 3:
        return add("barrier", group.barrier_async(), mine, mine);
      case 4: {
        const at::Tensor all = copy_of(at::empty({count * ranks}, at::kLong));
        std::vector<at::Tensor> expected;
        for (const int member : members) expected.push_back(given(number, member, count));
        return add("all_gather" + text, group.all_gather_into_tensor_async(all, mine), all, at::cat(expected),
                   mine);
      }
      case 5: {
        const at::Tensor input = copy_of(given(number, self, count * ranks));
        const at::Tensor output = copy_of(at::empty({count}, at::kLong));
        return add("reduce_scatter" + text, group.reduce_scatter_tensor_async(output, input), output,
                   sum_of(number, members, count * ranks).narrow(0, group.rank() * count, count), input);
      }
      case 6: {
        const at::Tensor input = copy_of(given(number, self, count * ranks));
        const at::Tensor output = copy_of(at::empty({count * ranks}, at::kLong));
        std::vector<at::Tensor> expected;
        for (const int member : members) {
          expected.push_back(given(number, member, count * ranks).narrow(0, group.rank() * count, count));
        }
        return add("all_to_all" + text, group.all_to_all_single_async(output, input), output,
                   at::cat(expected), input);
      }
      case 7:
        return check(broadcast_object(group, group.rank() == root ? object_of(number, self) : json(),
                                      {.src = root}) == object_of(number, members[static_cast<size_t>(root)]),
                     "broadcast_object");
      case 8: {
        const auto objects = all_gather_object(group, object_of(number, self));
        for (size_t r = 0; r < members.size(); ++r) {
          check(objects[r] == object_of(number, members[r]), "all_gather_object");
        }
        return;
      }
      default: {
        const at::Tensor strided = at::empty({count, 2}, at::kLong).select(1, 0).copy_(mine);
        return add("all_reduce with gaps" + text, group.all_reduce_async(strided), strided,
                   sum_of(number, members, count));
      }
    }
  }

  void end_one() {
    const auto chosen = items_.begin() + static_cast<ptrdiff_t>(pick(own_, items_.size()));
    const Item item = std::move(*chosen);
    items_.erase(chosen);
    switch (pick(own_, 4)) {
      case 0:
        item.work->wait();
        break;
      case 1:
        while (!item.work->is_completed()) std::this_thread::yield();
        break;
      case 2:
        item.work->get_future()->waitAndThrow();
        break;
      default:
        if (pick(own_, 2) == 0) {
          const auto future = item.work->get_future();
          item.work->wait();  // both see the end
          future->waitAndThrow();
        } else if (!item.work->is_completed()) {
          return;  // left to itself, with its tensors
        }
        break;
    }
    if (!item.work->is_success() || !item.result.equal(item.expected)) {
      throw std::runtime_error(item.what + ": wrong result");
    }
  }

  const World world_;
  Random program_, own_;
  std::string name_;
  int step_ = 0;
  uint64_t number_ = 0;
  std::vector<ProcessGroup> groups_;
  std::vector<Item> items_;
};

TEST(Fuzz, Programs) {
  const auto first = static_cast<uint64_t>(env::get_int("LOCKSTEP_FUZZ_SEED").value_or(1));
  const auto programs = static_cast<uint64_t>(env::get_int("LOCKSTEP_FUZZ_PROGRAMS").value_or(4));
  for (uint64_t seed = first; seed < first + programs; ++seed) Program(seed).run(60);
}

/// Floating-point numbers in random collectives of random groups. Every rank keeps all bits of its results.
class Sums {
 public:
  explicit Sums(uint64_t seed) : world_(lockstep::testing::world()), random_(seed) {}

  /// Returns the results of all steps, one after another.
  std::string run(int steps) {
    groups_ = {world_};
    for (int n = 0; n < 3; ++n) {
      std::vector<int> some(static_cast<size_t>(world_.size()));
      std::iota(some.begin(), some.end(), 0);
      std::shuffle(some.begin(), some.end(), random_);
      some.resize(1 + pick(random_, some.size()));
      groups_.push_back(world_.new_group(some));
    }
    for (int step = 0; step < steps; ++step) start(groups_[pick(random_, groups_.size())]);
    for (const auto& [work, result] : started_) {
      work->wait();
      const auto* const bytes = static_cast<const char*>(result.const_data_ptr());
      bits_.append(bytes, result.nbytes());
    }
    return bits_;
  }

 private:
  at::Tensor draw(int rank, int64_t count, at::ScalarType dtype) const {
    const at::Tensor at = at::arange(count, at::kDouble);
    return ((at * 1.7 + rank * 0.3 + static_cast<double>(number_)).sin() * (at.remainder(9) - 4).exp())
        .to(dtype);
  }
  /// Makes the same choices on all ranks, members or not.
  void start(const ProcessGroup& group) {
    ++number_;
    constexpr int64_t kCounts[] = {0, 1, 3, 17, 1025, 5003, 70001, 300000};
    constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
    constexpr ReduceOp kOps[] = {ReduceOp::SUM, ReduceOp::AVG, ReduceOp::PRODUCT, ReduceOp::MIN,
                                 ReduceOp::MAX};
    const size_t kind = pick(random_, 8);
    const int64_t count = kCounts[pick(random_, std::size(kCounts))];
    const at::ScalarType dtype = kDtypes[pick(random_, std::size(kDtypes))];
    const ReduceOp op = kOps[pick(random_, std::size(kOps))];
    const int ranks = group.size(), root = static_cast<int>(pick(random_, static_cast<size_t>(ranks)));
    const int64_t salt = static_cast<int64_t>(pick(random_, 5));
    if (!group.is_member()) return;
    const int own = group.rank();
    const at::Tensor mine = draw(world_.rank(), count, dtype);
    const auto add = [&](std::shared_ptr<Work> work, const at::Tensor& result) {
      started_.emplace_back(std::move(work), result);
    };
    switch (kind) {
      case 0:
      case 1:
        return add(group.all_reduce_async(mine, {.op = op}), mine);
      case 2: {
        const auto work = group.reduce_async(mine, {.dst = root, .op = op});
        return add(work, own == root ? mine : at::empty({0}));
      }
      case 3: {
        const at::Tensor output = at::empty({count}, dtype);
        given_.push_back(draw(world_.rank(), count * ranks, dtype));
        return add(group.reduce_scatter_tensor_async(output, given_.back(), {.op = op}), output);
      }
      case 4: {
        std::vector<at::Tensor> outputs;
        const at::Tensor all = at::empty({ranks, count}, dtype);
        for (int r = 0; own == root && r < ranks; ++r) outputs.push_back(all[r]);
        given_.push_back(mine);
        return add(group.gather_async(outputs, mine, {.dst = root}), own == root ? all : at::empty({0}));
      }
      case 5: {
        std::vector<at::Tensor> inputs;
        for (int r = 0; own == root && r < ranks; ++r) inputs.push_back(draw(r + 7, count, dtype));
        const at::Tensor output = at::empty({count}, dtype);
        return add(group.scatter_async(output, inputs, {.src = root}), output);
      }
      case 6: {
        std::vector<at::Tensor> inputs, outputs;
        int64_t received = 0;
        for (int r = 0; r < ranks; ++r) {
          inputs.push_back(draw(world_.rank() + r, count * ((own + 2 * r + salt) % 3), dtype));
          received += count * ((r + 2 * own + salt) % 3);
        }
        const at::Tensor output = at::empty({received}, dtype);
        std::vector<int64_t> out, in;
        for (int r = 0; r < ranks; ++r) {
          out.push_back(count * ((r + 2 * own + salt) % 3));
          in.push_back(inputs[static_cast<size_t>(r)].numel());
        }
        given_.push_back(at::cat(inputs));
        return add(group.all_to_all_single_async(output, given_.back(), out, in), output);
      }
      default: {
        // From the neighbor, or from whoever it is.
        const int next = (own + 1) % ranks, previous = (own + ranks - 1) % ranks;
        const at::Tensor received = at::empty({count}, dtype);
        const int tag = static_cast<int>(number_ % 1000) + 10;
        given_.push_back(mine);
        sends_.push_back(group.isend(mine, next, {.tag = tag}));
        const auto source = salt % 2 == 0 ? std::optional<int>(previous) : std::nullopt;
        return add(group.irecv(received, source, {.tag = tag}), received);
      }
    }
  }

  const World world_;
  Random random_;
  uint64_t number_ = 0;
  std::vector<ProcessGroup> groups_;
  std::vector<std::pair<std::shared_ptr<Work>, at::Tensor>> started_;
  std::vector<std::shared_ptr<Work>> sends_;
  std::vector<at::Tensor> given_;
  std::string bits_;
};

TEST(Fuzz, BitsOfFloatingPointNumbers) {
  ONLY_IF(lockstep::testing::world().backend_name() == "lockstep");
  const auto first = static_cast<uint64_t>(env::get_int("LOCKSTEP_FUZZ_SEED").value_or(1));
  const auto programs = static_cast<uint64_t>(env::get_int("LOCKSTEP_FUZZ_PROGRAMS").value_or(2));
  std::string bits;
  for (uint64_t seed = first; seed < first + programs; ++seed) {
    const std::string result = Sums(seed).run(40);
    CHECK_TRUE(!result.empty());
    CHECK_TRUE(Sums(seed).run(40) == result);  // again, at other moments
    bits += result;
  }
  if (const auto folder = env::get("LOCKSTEP_FUZZ_RESULTS")) {
    std::ofstream file(*folder + "/" + std::to_string(lockstep::testing::world().rank()), std::ios::binary);
    file << bits;
    CHECK_TRUE(file.flush().good());
  }
  lockstep::testing::world().barrier();
}

}  // namespace
