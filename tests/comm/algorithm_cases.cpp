// All-reduce by every algorithm, against the specified order of summation written down independently.
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/algorithms/choice.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;

namespace {

using enum AllReduceAlgorithm;

/// Those that add in the order of the balanced tree. Under these tests a node has two ranks.
constexpr std::array kTrees = {DIRECT, REDUCE_BROADCAST, ALL_TO_ALL, TREE, HIERARCHICAL};
constexpr std::array kOthers = {RING, HALVING_DOUBLING};

/// How the elements of a dtype are added, and how a sum becomes an element again.
template <class T>
struct Arithmetic {
  using Sum = T;
};
template <>
struct Arithmetic<c10::Half> {
  using Sum = float;
};
template <>
struct Arithmetic<c10::BFloat16> {
  using Sum = float;
};

template <class Sum>
Sum tree(const std::vector<Sum>& values, size_t begin, size_t count,
         const std::function<Sum(Sum, Sum)>& combine) {
  if (count == 1) return values[begin];
  size_t left = 1;
  while (left * 2 < count) left *= 2;
  return combine(tree(values, begin, left, combine), tree(values, begin + left, count - left, combine));
}

/// A hash, because many millions of them are made.
template <class T>
T value_of(uint32_t trial, int rank, int64_t index) {
  uint64_t bits =
      trial * 7919U + static_cast<uint64_t>(rank) * 104729U + static_cast<uint64_t>(index) * 31U + 1U;
  bits *= 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 29)) * 0xBF58476D1CE4E5B9U;
  bits ^= bits >> 32;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<int64_t>(bits % 2000) - 1000);
  return static_cast<T>((static_cast<double>(bits >> 11) / 9007199254740992.0 - 0.5) * 200);
}

template <class T>
at::Tensor input(uint32_t trial, int rank, int64_t count) {
  at::Tensor tensor = at::empty({count}, c10::CppTypeToScalarType<T>::value);
  for (int64_t i = 0; i < count; ++i) tensor.data_ptr<T>()[i] = value_of<T>(trial, rank, i);
  return tensor;
}

template <class T>
at::Tensor expected(uint32_t trial, int ranks, int64_t count, ReduceOp op) {
  using Sum = typename Arithmetic<T>::Sum;
  const std::function<Sum(Sum, Sum)> combine = [op](Sum a, Sum b) {
    return op == ReduceOp::MIN   ? std::min(a, b)
           : op == ReduceOp::MAX ? std::max(a, b)
                                 : static_cast<Sum>(a + b);
  };
  at::Tensor tensor = at::empty({count}, c10::CppTypeToScalarType<T>::value);
  std::vector<Sum> values;
  for (int64_t i = 0; i < count; ++i) {
    values.clear();
    for (int r = 0; r < ranks; ++r) values.push_back(static_cast<Sum>(value_of<T>(trial, r, i)));
    Sum sum = tree(values, 0, values.size(), combine);
    if (op == ReduceOp::AVG) sum /= static_cast<Sum>(ranks);
    tensor.data_ptr<T>()[i] = static_cast<T>(sum);
  }
  return tensor;
}

template <class T>
void check(const World& world, uint32_t trial, int64_t count, ReduceOp op) {
  const at::Tensor wanted = expected<T>(trial, world.size(), count, op);
  const at::Tensor own = input<T>(trial, world.rank(), count);
  const auto result = [&](AllReduceAlgorithm algorithm) {
    at::Tensor tensor = own.clone();
    world.all_reduce(tensor, {.op = op, .algorithm = algorithm});
    return tensor;
  };
  const bool exact = std::is_integral_v<T> || op == ReduceOp::MIN || op == ReduceOp::MAX;
  // A backend of others' has its own order.
  const bool own_direct = world.backend_name() == "lockstep";
  for (const auto algorithm : kTrees) {
    if (algorithm == DIRECT && !own_direct) continue;
    if (result(algorithm).equal(wanted)) continue;
    throw std::runtime_error(std::string(algorithms::name_of(algorithm)) + " differs from the tree: " +
                             c10::toString(wanted.scalar_type()) + "[" + std::to_string(count) + "], op " +
                             std::to_string(static_cast<int>(op)) + ", trial " + std::to_string(trial));
  }
  for (const auto algorithm : kOthers) {
    const at::Tensor once = result(algorithm);
    CHECK_EQUAL(once, result(algorithm));
    CHECK_CLOSE(once, wanted, exact ? 0 : 1e-2, exact ? 0 : 1e-2);
  }
}

constexpr const char* kChosen = "LOCKSTEP_ALL_REDUCE_ALGORITHM";

TEST(Algorithms, GiveTheBitsThatTheyPromise) {
  ONLY_IF(!env::get(kChosen));
  const World world = lockstep::testing::world();
  std::minstd_rand generator(17);
  generator.discard(5);
  for (uint32_t trial = 0; trial < 18; ++trial) {
    const auto count = static_cast<int64_t>(std::exp2(std::uniform_real_distribution<>(0, 15)(generator)));
    const bool average = generator() % 2 == 0;
    const ReduceOp of_floats = average ? ReduceOp::AVG : ReduceOp::SUM;
    switch (trial % 6) {
      case 0:
        check<float>(world, trial, count, of_floats);
        break;
      case 1:
        check<double>(world, trial, count, of_floats);
        break;
      case 2:
        check<c10::BFloat16>(world, trial, count, of_floats);
        break;
      case 3:
        check<c10::Half>(world, trial, count, of_floats);
        break;
      case 4:
        check<int64_t>(world, trial, count, average ? ReduceOp::MIN : ReduceOp::SUM);
        break;
      default:
        check<float>(world, trial, count, ReduceOp::MAX);
        break;
    }
  }
  // More than one piece, and nothing at all.
  check<float>(world, 100, 150001, ReduceOp::SUM);
  check<float>(world, 101, 0, ReduceOp::SUM);
}

TEST(Algorithms, AreChosenByTheEnvironmentWhereTheCallDoesNot) {
  ONLY_IF(env::get(kChosen) == "ring");
  const World world = lockstep::testing::world();
  const at::Tensor ring = input<float>(1, world.rank(), 1000);
  world.all_reduce(ring, {.algorithm = RING});
  const at::Tensor tree = input<float>(1, world.rank(), 1000);
  world.all_reduce(tree, {.algorithm = TREE});
  CHECK_TRUE(!ring.equal(tree));  // or this case would prove nothing
  const at::Tensor by_environment = input<float>(1, world.rank(), 1000);
  world.all_reduce(by_environment);
  CHECK_EQUAL(by_environment, ring);
  const at::Tensor asynchronous = input<float>(1, world.rank(), 1000);
  const auto work = world.all_reduce_async(asynchronous);
  work->wait();
  CHECK_TRUE(work->is_completed());
  CHECK_EQUAL(asynchronous, ring);
}

TEST(Algorithms, NeverMeetMessagesOfTheProgram) {
  ONLY_IF(lockstep::testing::world().size() > 1);
  const World world = lockstep::testing::world();
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  const std::vector<int> tags = {0, 1, 0x4c4f434b, kMostTag};
  std::vector<std::shared_ptr<Work>> sends;
  for (const int tag : tags)
    sends.push_back(world.isend(at::full({250}, static_cast<float>(tag % 1000)), next, {.tag = tag}));
  for (const auto algorithm : {RING, TREE, HALVING_DOUBLING}) {
    const at::Tensor sum = at::ones({500});
    world.all_reduce(sum, {.algorithm = algorithm});
    CHECK_EACH(sum, world.size());
  }
  for (const int tag : tags) {
    const at::Tensor received = at::empty({250});
    world.recv(received, previous, {.tag = tag});
    CHECK_EACH(received, tag % 1000);
  }
  for (const auto& send : sends) send->wait();
  const at::Tensor tensor = at::ones({1});
  lockstep::testing::check_throws<ValueError>([&] { world.send(tensor, next, {.tag = kMostTag + 1}); },
                                              "must be 0 to 2147483646");
  lockstep::testing::check_throws<ValueError>([&] { world.irecv(tensor, next, {.tag = -1}); }, "not -1");
}

}  // namespace
