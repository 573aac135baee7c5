// Sums that travel between machines in bfloat16: how accurate they are, and who may ask for them.
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/joining/machines.h"
#include "lockstep/comm/uplink/sum_plan.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;

namespace {

size_t count_machines(const World& world) { return ranks_by_machine(world.size()).size(); }
bool is_lockstep(const World& world) { return world.backend_name() == "lockstep"; }

/// Numbers of many sizes and both signs.
at::Tensor make_numbers(int rank, int64_t count, at::ScalarType dtype) {
  const at::Tensor at = at::arange(count, at::kDouble);
  return ((at * 0.7 + rank).sin() * (at.remainder(11) - 5).exp()).to(dtype);
}

/// How many sums travel between the machines.
size_t count_sums(const World& world) {
  std::vector<int> machine_of(static_cast<size_t>(world.size()));
  const auto machines = ranks_by_machine(world.size());
  for (size_t m = 0; m < machines.size(); ++m) {
    for (const int rank : machines[m]) machine_of[static_cast<size_t>(rank)] = static_cast<int>(m);
  }
  return uplink::SumPlan(machine_of).leaves().size();
}

/// What docs/howto/slow_networks.md promises: each machine's sums are rounded once, and where they are more than two the result
/// is, each time by at most one part in 256.
void check_accuracy(const World& world, const at::Tensor& found, const std::vector<at::Tensor>& given,
                    bool averages) {
  at::Tensor sum = at::zeros(found.sizes(), at::kDouble), sizes = sum.clone();
  for (const at::Tensor& each : given) {
    sum += each.to(at::kDouble);
    sizes += each.to(at::kDouble).abs();
  }
  const size_t sums = count_sums(world);
  double part = sums == 1 ? 0 : sums == 2 ? 1.0 / 256 : 2.02 / 256;
  // The rounding of the sum itself, which one machine has too.
  part += found.scalar_type() == at::kFloat  ? 1e-5
          : found.scalar_type() == at::kHalf ? 1.0 / 2048
                                             : 1.0 / 256;
  const at::Tensor bound = sizes * part + 1e-7;
  const at::Tensor error = (found.to(at::kDouble) * (averages ? world.size() : 1) - sum).abs();
  CHECK_TRUE(error.le(bound).all().item<bool>());
}

/// Returns whether the result differs from that of exact sums.
bool reduces(const World& world, int64_t count, at::ScalarType dtype, ReduceOp op,
             std::optional<WireDtype> wire_dtype) {
  std::vector<at::Tensor> given;
  for (int r = 0; r < world.size(); ++r) given.push_back(make_numbers(r, count, dtype));
  const at::Tensor exact = given[static_cast<size_t>(world.rank())].clone(), rounded = exact.clone();
  world.all_reduce(exact, {.op = op, .wire_dtype = WireDtype::EXACT});
  world.all_reduce(rounded, {.op = op, .wire_dtype = wire_dtype});
  check_accuracy(world, rounded, given, op == ReduceOp::AVG);
  for (const at::Tensor& theirs : world.all_gather(rounded)) CHECK_EQUAL(theirs, rounded);
  // In flight together, and in pieces of another call: the same bits.
  const at::Tensor again = given[static_cast<size_t>(world.rank())].clone();
  const auto first = world.all_reduce_async(again, {.op = op, .wire_dtype = wire_dtype});
  const at::Tensor other = at::ones({10});
  world.all_reduce(other);
  first->wait();
  CHECK_EQUAL(again, rounded);
  return !rounded.equal(exact);
}

TEST(WireDtype, RoundsAsItPromises) {
  const World world = lockstep::testing::world();
  ONLY_IF(is_lockstep(world));
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::AVG}) {
      for (const int64_t count : {0, 1, 1000, 5000, 300000}) {
        if (count > 5000 && (op == ReduceOp::AVG || dtype != at::kFloat)) continue;
        SCOPED_CASE("{} elements of {}", count, c10::toString(dtype));
        const bool differs = reduces(world, count, dtype, op, WireDtype::BFLOAT16);
        // bfloat16 has as many bits as travel: few of its results change.
        if (count >= 1000 && dtype == at::kFloat) CHECK_TRUE(differs == (count_machines(world) > 1));
      }
    }
  }
}

TEST(WireDtype, RoundsComplexNumbersAndGroups) {
  const World world = lockstep::testing::world();
  ONLY_IF(is_lockstep(world) && world.size() > 2);
  std::vector<int> some;
  for (int r = world.size() - 1; r > 0; --r) some.push_back(r);
  const ProcessGroup group = world.new_group(some);
  if (!group.is_member()) return;
  const at::Tensor parts = make_numbers(world.rank(), 600, at::kFloat);
  const at::Tensor sum = at::complex(parts, -parts);
  group.all_reduce(sum, {.wire_dtype = WireDtype::BFLOAT16});
  const at::Tensor real = parts.clone();
  group.all_reduce(real, {.wire_dtype = WireDtype::BFLOAT16});
  CHECK_EQUAL(sum, at::complex(real, -real));
}

TEST(WireDtype, IsRefusedWhereItMakesNoSense) {
  const World world = lockstep::testing::world();
  const auto refuses = [&](const at::Tensor& tensor, AllReduceOptions options, const std::string& part) {
    options.wire_dtype = WireDtype::BFLOAT16;
    check_throws<ValueError>([&] { world.all_reduce(tensor, options); }, part);
    check_throws<ValueError>([&] { world.all_reduce_async(tensor, options); }, part);
  };
  if (!is_lockstep(world)) {
    refuses(at::ones({3}), {}, "wire_dtype BFLOAT16 needs the backend \"lockstep\", not \"gloo\"");
    return;
  }
  refuses(at::ones({3}, at::kLong), {}, "not for SUM of int64");
  refuses(at::ones({3}, at::kDouble), {.op = ReduceOp::AVG}, "not for AVG of float64");
  refuses(at::ones({3}), {.op = ReduceOp::MAX}, "not for MAX of float32");
  refuses(at::ones({3}), {.algorithm = AllReduceAlgorithm::RING}, "needs the algorithm direct, not ring");
  // The group goes on.
  const at::Tensor sum = at::ones({3});
  world.all_reduce(sum);
  CHECK_TRUE(sum[0].item<float>() == static_cast<float>(world.size()));
}

/// On the same machine, and on another one.
TEST(WireDtype, RanksThatDisagreeGetAnError) {
  const World world = lockstep::testing::world();
  ONLY_IF(is_lockstep(world) && count_machines(world) > 1);
  for (const int other : {0, world.size() - 1}) {
    const ProcessGroup group = world.duplicate();  // which is broken afterwards
    world.barrier();                               // others may still connect
    const auto wire_dtype = world.rank() == other ? WireDtype::BFLOAT16 : WireDtype::EXACT;
    check_throws<MismatchError>([&] { group.all_reduce(at::ones({5000}), {.wire_dtype = wire_dtype}); },
                                "bfloat16");
  }
}

TEST(WireDtype, FollowsTheEnvironment) {
  ONLY_IF(env::get("LOCKSTEP_WIRE_DTYPE").has_value());
  const World world = lockstep::testing::world();
  CHECK_TRUE(reduces(world, 5000, at::kFloat, ReduceOp::SUM, std::nullopt));
  // What it has no meaning for is exact.
  const at::Tensor wide = make_numbers(world.rank(), 5000, at::kDouble), same = wide.clone();
  world.all_reduce(wide);
  world.all_reduce(same, {.wire_dtype = WireDtype::EXACT});
  CHECK_EQUAL(wide, same);
  const at::Tensor counts = at::full({10}, (int64_t{1} << 40) + world.rank(), at::kLong);
  world.all_reduce(counts);
  CHECK_TRUE(counts[0].item<int64_t>() ==
             world.size() * (int64_t{1} << 40) + world.size() * (world.size() - 1) / 2);
  const at::Tensor most = at::full({10}, 1.0F + 1e-5F * static_cast<float>(world.rank()));
  world.all_reduce(most, {.op = ReduceOp::MAX});
  CHECK_TRUE(most[0].item<float>() == 1.0F + 1e-5F * static_cast<float>(world.size() - 1));
  // As it was when the group was made.
  const std::optional<std::string> before = env::get("LOCKSTEP_WIRE_DTYPE");
  env::set("LOCKSTEP_WIRE_DTYPE", "exact");
  const ProcessGroup later = world.duplicate();
  const at::Tensor by_world = make_numbers(world.rank(), 5000, at::kFloat), by_later = by_world.clone(),
                   exact = by_world.clone();
  world.all_reduce(by_world);
  env::set("LOCKSTEP_WIRE_DTYPE", before);
  later.all_reduce(by_later);
  world.all_reduce(exact, {.wire_dtype = WireDtype::EXACT});
  CHECK_EQUAL(by_later, exact);
  CHECK_TRUE(!by_world.equal(exact));
}

}  // namespace
