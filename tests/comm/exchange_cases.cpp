// scatter, gather and all_to_all with every root, unequal parts and groups that lie across machines.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;

namespace {

using TensorList = std::vector<at::Tensor>;

/// What global rank `from` has for rank `to`.
at::Tensor make_part(int from, int to, int64_t count, at::ScalarType dtype) {
  return (at::arange(count, at::kLong).mul_(from + 3) + 7 * to + from).remainder_(101).to(dtype);
}

/// All ranks; those but the first; the first and the last; every second one, which comes first.
std::vector<ProcessGroup> make_groups(const World& world) {
  std::vector<ProcessGroup> groups{world};
  const int size = world.size();
  std::vector<int> all(static_cast<size_t>(size)), odd;
  std::iota(all.begin(), all.end(), 0);
  for (int r = size - 1; r >= 0; r -= 2) odd.push_back(r);
  if (size > 1) {
    groups.push_back(world.new_group({all.begin() + 1, all.end()}));
    groups.push_back(world.new_group({0, size - 1}));
    groups.push_back(world.new_group(odd));
  }
  return groups;
}

TEST(Exchange, EveryRootScattersAndGathers) {
  const World world = lockstep::testing::world();
  for (const ProcessGroup& group : make_groups(world)) {
    if (!group.is_member()) continue;
    const int own = group.rank();
    for (int root = 0; root < group.size(); ++root) {
      for (const int64_t count : {0, 1, 33, 70000}) {
        const at::ScalarType dtype = root % 2 == 0 ? at::kFloat : at::kChar;
        SCOPED_CASE("root {} of {}, {} elements", root, group.size(), count);
        TensorList inputs;
        for (int r = 0; own == root && r < group.size(); ++r) {
          const at::Tensor part = make_part(root, r, count, dtype);
          // Some have another layout.
          inputs.push_back(r % 2 == 0 ? part : at::empty({count, 2}, dtype).select(1, 1).copy_(part));
        }
        const at::Tensor scattered = at::full({count}, 55, dtype);
        group.scatter(scattered, inputs, {.src = root});
        CHECK_EQUAL(scattered, make_part(root, own, count, dtype));
        const TensorList gathered = group.gather(make_part(own, root, count, dtype), {.dst = root});
        CHECK_TRUE(gathered.size() == (own == root ? static_cast<size_t>(group.size()) : 0U));
        for (size_t r = 0; r < gathered.size(); ++r)
          CHECK_EQUAL(gathered[r], make_part(static_cast<int>(r), root, count, dtype));
      }
    }
  }
}

int64_t count_between(int from, int to, int64_t unit) { return unit * ((3 * from + 5 * to + 1) % 4); }

TEST(Exchange, PartsOfEqualAndUnequalSizes) {
  const World world = lockstep::testing::world();
  for (const ProcessGroup& group : make_groups(world)) {
    if (!group.is_member()) continue;
    const int own = group.rank();
    for (const int64_t unit : {0, 1, 700, 30000}) {
      for (const bool is_even : {true, false}) {
        SCOPED_CASE("{} ranks, unit {}, {}", group.size(), unit, is_even);
        const auto count = [&](int from, int to) { return is_even ? unit : count_between(from, to, unit); };
        TensorList inputs, outputs, expected;
        std::vector<int64_t> sent, received;
        for (int r = 0; r < group.size(); ++r) {
          inputs.push_back(make_part(own, r, count(own, r), at::kDouble));
          outputs.push_back(at::full({count(r, own)}, -1, at::kDouble));
          expected.push_back(make_part(r, own, count(r, own), at::kDouble));
          sent.push_back(count(own, r));
          received.push_back(count(r, own));
        }
        group.all_to_all(outputs, inputs);
        for (size_t r = 0; r < expected.size(); ++r) CHECK_EQUAL(outputs[r], expected[r]);
        const at::Tensor flat = at::full_like(at::cat(expected), -1);
        if (is_even) {
          group.all_to_all_single(flat, at::cat(inputs));
        } else {
          group.all_to_all_single(flat, at::cat(inputs), received, sent);
        }
        CHECK_EQUAL(flat, at::cat(expected));
      }
    }
  }
}

TEST(Exchange, SeveralAreInFlightAtOnce) {
  const World world = lockstep::testing::world();
  const int size = world.size(), own = world.rank();
  std::vector<std::shared_ptr<Work>> works;
  std::vector<std::pair<at::Tensor, at::Tensor>> results;
  const auto add = [&](std::shared_ptr<Work> work, at::Tensor result, at::Tensor expected) {
    works.push_back(std::move(work));
    results.emplace_back(std::move(result), std::move(expected));
  };
  TensorList kept;
  for (int round = 0; round < 4; ++round) {
    const int64_t count = round % 2 == 0 ? 500 : 40000;
    const int root = round % size;
    TensorList parts, received;
    for (int r = 0; r < size; ++r) {
      parts.push_back(make_part(own, r, count, at::kInt));
      received.push_back(make_part(r, own, count, at::kInt));
    }
    const at::Tensor swapped = at::empty({size * count}, at::kInt), sum = at::ones({count});
    kept.push_back(at::cat(parts));
    add(world.all_to_all_single_async(swapped, kept.back()), swapped, at::cat(received));
    add(world.all_reduce_async(sum), sum, at::full({count}, static_cast<float>(size)));
    const at::Tensor scattered = at::empty({count}, at::kInt);
    add(world.scatter_async(scattered, own == root ? parts : TensorList(), {.src = root}), scattered,
        make_part(root, own, count, at::kInt));
    TensorList outputs;
    for (int r = 0; own == root && r < size; ++r) outputs.push_back(at::empty({count}, at::kInt));
    const auto gather = world.gather_async(outputs, parts[static_cast<size_t>(root)], {.dst = root});
    if (own == root) {
      add(gather, outputs.back(), make_part(size - 1, own, count, at::kInt));
    } else {
      works.push_back(gather);
    }
  }
  for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)->wait();
  for (const auto& [result, expected] : results) CHECK_EQUAL(result, expected);
}

/// The rank that expects something else says so, and the group goes on.
TEST(Exchange, ARankThatExpectsOtherPartsGetsAnError) {
  const World world = lockstep::testing::world();
  const int size = world.size(), own = world.rank();
  ONLY_IF(size > 1 && world.backend_name() == "lockstep");
  for (int wrong = 0; wrong < size; ++wrong) {
    for (const int64_t difference : {-1, 1}) {
      std::vector<int64_t> sent(static_cast<size_t>(size), 4), received = sent;
      const int sender = (wrong + 1) % size;
      if (own == wrong) received[static_cast<size_t>(sender)] += difference;
      const at::Tensor input = at::ones({4 * size});
      const at::Tensor output = at::empty({std::accumulate(received.begin(), received.end(), int64_t{0})});
      if (own == wrong) {
        check_throws<ValueError>([&] { world.all_to_all_single(output, input, received, sent); },
                                 "all_to_all: rank " + std::to_string(sender) + " sends 4 elements to rank " +
                                     std::to_string(wrong) + ", which expects " +
                                     std::to_string(4 + difference));
      } else {
        world.all_to_all_single(output, input, received, sent);
        CHECK_EQUAL(output, at::ones({4 * size}));
      }
      const at::Tensor sum = at::ones({10});
      world.all_reduce(sum);
      CHECK_TRUE(sum[0].item<float>() == static_cast<float>(size));
    }
  }
}

/// Other sizes of the same call are an error on all ranks.
TEST(Exchange, OtherSizesAreAnErrorOnAllRanks) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.size() > 1 && world.backend_name() == "lockstep");
  for (const int other : {0, world.size() - 1}) {
    const ProcessGroup group = world.duplicate();  // which is broken afterwards
    const int64_t count = (world.rank() == other ? 6 : 5) * world.size();
    const at::Tensor input = at::ones({count}), output = at::ones({count});
    check_throws<MismatchError>([&] { group.all_to_all_single(output, input); }, "all_to_all");
  }
}

}  // namespace
