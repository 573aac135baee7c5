// Collectives on tensors, checked against what LibTorch computes on one rank from everybody's inputs.
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/parts.h"
#include "tests/comm/numbers.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::check_throws;
using lockstep::testing::world;
using namespace std::chrono_literals;

namespace {

/// Returns the input of `rank`; every rank that computes it gets the same.
at::Tensor input(int rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return lockstep::testing::periodic(
             count, 17,
             [&](const at::Tensor& index) { return (index * (rank + 3)).remainder(17).add(rank).to(dtype); })
      .view(sizes);
}

at::Tensor reduced(const World& world, at::IntArrayRef sizes, at::ScalarType dtype, ReduceOp op) {
  std::vector<at::Tensor> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(input(r, sizes, dtype));
  const at::Tensor stacked = at::stack(all);
  const auto folded = [&](const auto& combine) {
    at::Tensor result = all[0].clone();
    for (size_t r = 1; r < all.size(); ++r) result = combine(result, all[r]);
    return result;
  };
  switch (op) {
    case ReduceOp::SUM:
      return dtype == at::kBool ? stacked.any(0) : stacked.sum(0).to(dtype);
    case ReduceOp::AVG:
      return stacked.to(at::kDouble).mean(0).to(dtype);
    case ReduceOp::MIN:
      return stacked.amin(0);
    case ReduceOp::MAX:
      return stacked.amax(0);
    case ReduceOp::PRODUCT:
      return dtype == at::kBool ? stacked.all(0) : stacked.prod(0).to(dtype);
    case ReduceOp::BAND:
      return folded([](const at::Tensor& a, const at::Tensor& b) { return a.bitwise_and(b); });
    case ReduceOp::BOR:
      return folded([](const at::Tensor& a, const at::Tensor& b) { return a.bitwise_or(b); });
    case ReduceOp::BXOR:
      return folded([](const at::Tensor& a, const at::Tensor& b) { return a.bitwise_xor(b); });
    case ReduceOp::PREMUL_SUM:
      break;  // see premul_sum()
  }
  return {};
}

const char* name_of(ReduceOp op) {
  constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                    "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return kNames[static_cast<size_t>(op)];
}

TEST(Collectives, AllReduce) {
  const World world = lockstep::testing::world();
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kChar, at::kByte, at::kShort, at::kInt, at::kLong, at::kBool}) {
    if (dtype == at::kShort && world.backend_name() != "lockstep") continue;  // Gloo has no such type
    for (const auto op : {ReduceOp::SUM, ReduceOp::PRODUCT, ReduceOp::MIN, ReduceOp::MAX, ReduceOp::BAND,
                          ReduceOp::BOR, ReduceOp::BXOR}) {
      const bool bitwise = op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR;
      if (bitwise && c10::isFloatingType(dtype)) {
        check_throws<Error>([&] { world.all_reduce(at::ones({3}, dtype), {.op = op}); }, "B");
        continue;
      }
      for (const std::vector<int64_t>& sizes :
           {std::vector<int64_t>{}, {0}, {1}, {3, 5}, {100, 100}, {70, 1000}}) {
        SCOPED_CASE("{} {} {}", c10::toString(dtype), name_of(op), ::testing::PrintToString(sizes));
        const at::Tensor tensor = input(world.rank(), sizes, dtype);
        world.all_reduce(tensor, {.op = op});
        CHECK_EQUAL(tensor, reduced(world, sizes, dtype, op));
      }
    }
  }
}

TEST(Collectives, Numbers) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  const int sum_of_ranks = size * (size - 1) / 2;
  double loss = 0.5 + self;
  world.all_reduce(loss);
  CHECK_TRUE(loss == 0.5 * size + sum_of_ranks);
  float least = static_cast<float>(self) - 7;
  world.all_reduce(least, {.op = ReduceOp::MIN});
  CHECK_TRUE(least == -7);
  double mean = 2.0 * self;
  world.all_reduce(mean, {.op = ReduceOp::AVG});
  CHECK_TRUE(std::abs(mean - 2.0 * sum_of_ranks / size) < 1e-12);
  // Beyond what a double counts exactly.
  constexpr int64_t kLarge = (int64_t{1} << 53) + 1;
  size_t count = self == 0 ? kLarge : 2;
  world.all_reduce(count);
  CHECK_TRUE(count == static_cast<size_t>(kLarge + 2 * (size - 1)));
  int64_t greatest = -self;
  world.all_reduce(greatest, {.op = ReduceOp::MAX});
  CHECK_TRUE(greatest == 0);
  uint8_t small = 255;
  if (size == 1) {
    world.all_reduce(small);
    CHECK_TRUE(small == 255);
  } else {
    check_throws<ValueError>([&] { world.all_reduce(small); }, std::to_string(255 * size) + " does not fit");
    CHECK_TRUE(small == 255);
  }
  uint64_t too_large = std::numeric_limits<uint64_t>::max();
  check_throws<ValueError>([&] { world.all_reduce(too_large); }, "18446744073709551615 does not fit");
  int whole = self;
  check_throws<ValueError>([&] { world.all_reduce(whole, {.op = ReduceOp::AVG}); }, "pass a double");
}

// The sum, also where it does not fit the dtype, divided with truncation.
TEST(Collectives, AveragesOfIntegers) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  const bool is_own = world.backend_name() == "lockstep";
  for (const auto dtype : {at::kChar, at::kByte, at::kShort, at::kInt, at::kLong, at::kUInt16, at::kUInt32}) {
    const bool is_signed = c10::isSignedType(dtype);
    const auto of = [&](int rank, int64_t count) {
      return lockstep::testing::periodic(count, 234, [&](const at::Tensor& index) {
        const at::Tensor values = index.mul(rank + 3).remainder(117).add(10);
        return (is_signed ? values.mul(index.remainder(2).mul(2).sub(1)) : values.add(120)).to(dtype);
      });
    };
    const auto average = [&](int64_t count) {
      at::Tensor sum = at::zeros({count}, at::kLong);
      for (int r = 0; r < size; ++r) sum += of(r, count).to(at::kLong);
      return at::div(sum, size, "trunc").to(dtype);
    };
    for (const int64_t count : {0, 1, 1000, 50000}) {
      SCOPED_CASE("{} [{}]", c10::toString(dtype), count);
      const at::Tensor expected = average(count);
      const at::Tensor blocking = of(self, count), started = of(self, count);
      world.all_reduce(blocking, {.op = ReduceOp::AVG});
      world.all_reduce_async(started, {.op = ReduceOp::AVG})->wait();
      CHECK_EQUAL(blocking, expected);
      CHECK_EQUAL(started, expected);
      for (const auto algorithm :
           {AllReduceAlgorithm::RING, AllReduceAlgorithm::HALVING_DOUBLING, AllReduceAlgorithm::TREE,
            AllReduceAlgorithm::REDUCE_BROADCAST, AllReduceAlgorithm::ALL_TO_ALL}) {
        const at::Tensor other = of(self, count);
        world.all_reduce(other, {.op = ReduceOp::AVG, .algorithm = algorithm});
        CHECK_EQUAL(other, expected);
      }
      const at::Tensor at_last = of(self, count);
      world.reduce(at_last, {.dst = size - 1, .op = ReduceOp::AVG});
      if (self == size - 1) CHECK_EQUAL(at_last, expected);
      if (is_own && count > 0) {
        const at::Tensor some = of(self, count);
        const std::vector<TensorPart> part{{self * (count / size), count / size}};
        lockstep::detail::reduce_parts_async(world, some, part, {.op = ReduceOp::AVG})->wait();
        const auto mine = [&](const at::Tensor& t) { return t.narrow(0, part[0].first, part[0].count); };
        CHECK_EQUAL(mine(some), mine(expected));
      }
      const at::Tensor whole = of(self, size * count), before = whole.clone(),
                       block = at::empty({count}, dtype);
      world.reduce_scatter_tensor(block, whole, {.op = ReduceOp::AVG});
      const at::Tensor wanted = average(size * count).narrow(0, self * count, count);
      CHECK_EQUAL(block, wanted);
      CHECK_EQUAL(whole, before);
      std::vector<at::Tensor> blocks;
      for (int r = 0; r < size; ++r) blocks.push_back(before.narrow(0, r * count, count));
      world.reduce_scatter(block, blocks, {.op = ReduceOp::AVG});
      CHECK_EQUAL(block, wanted);
    }
  }
  if (is_own) {
    // 2^63 at one rank: without a sign.
    const at::Tensor large = at::full({3}, self == 0 ? std::numeric_limits<int64_t>::min() : 0, at::kLong);
    world.all_reduce(large.view(at::kUInt64), {.op = ReduceOp::AVG});
    const uint64_t mean = (uint64_t{1} << 63) / static_cast<uint64_t>(size);
    CHECK_EACH(large, static_cast<int64_t>(mean));
  }
  check_throws<ValueError>([&] { world.all_reduce(at::ones({3}, at::kBool), {.op = ReduceOp::AVG}); },
                           "a reduction cannot combine bool by AVG");
}

TEST(Collectives, PremulSum) {
  const World world = lockstep::testing::world();
  const auto factor = [](int rank) { return rank + 0.5; };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kComplexFloat, at::kBFloat16}) {
    for (const int64_t count : {7, 60000}) {
      SCOPED_CASE("{} [{}]", c10::toString(dtype), count);
      at::Tensor expected = at::zeros({count}, dtype);
      for (int r = 0; r < world.size(); ++r) expected += input(r, {count}, dtype).mul(factor(r));
      const at::Tensor whole = input(world.rank(), {count}, dtype);
      world.all_reduce(whole, {.op = ReduceOp::PREMUL_SUM, .premul_factor = factor(world.rank())});
      CHECK_CLOSE(whole, expected, 0.02, 0.02);
      for (const int root : {0, world.size() - 1}) {  // a rank that is not the root keeps its values
        const at::Tensor own = input(world.rank(), {count}, dtype), reduced = own.clone();
        world.reduce(reduced,
                     {.dst = root, .op = ReduceOp::PREMUL_SUM, .premul_factor = factor(world.rank())});
        if (world.rank() == root) {
          CHECK_CLOSE(reduced, expected, 0.02, 0.02);
        } else {
          CHECK_EQUAL(reduced, own);
        }
      }
      const at::Tensor blocks = at::cat(
          std::vector<at::Tensor>(static_cast<size_t>(world.size()), input(world.rank(), {count}, dtype)));
      const at::Tensor before = blocks.clone(), block = at::empty({count}, dtype);
      world.reduce_scatter_tensor(block, blocks,
                                  {.op = ReduceOp::PREMUL_SUM, .premul_factor = factor(world.rank())});
      CHECK_CLOSE(block, expected, 0.02, 0.02);
      CHECK_EQUAL(blocks, before);
    }
  }
  check_throws<ValueError>([&] { world.all_reduce(at::ones({3}, at::kInt), {.op = ReduceOp::PREMUL_SUM}); },
                           "PREMUL_SUM");
}

/// A copy is multiplied: the operation before, which nobody has waited for, sends the values as they were.
TEST(Collectives, PremulSumBesideAnotherOfTheTensor) {
  const World world = lockstep::testing::world();
  for (const int64_t count : {7, 60000, 1000000}) {
    for (const bool is_reduce : {false, true}) {
      SCOPED_CASE("[{}]{}", count, is_reduce ? " reduce" : "");
      const at::Tensor own = input(world.rank(), {count}, at::kFloat), all = at::empty({world.size(), count});
      const auto gather = world.all_gather_into_tensor_async(all, own);
      const auto sum = is_reduce
                           ? world.reduce_async(own, {.op = ReduceOp::PREMUL_SUM, .premul_factor = 0.5})
                           : world.all_reduce_async(own, {.op = ReduceOp::PREMUL_SUM, .premul_factor = 0.5});
      gather->wait();
      sum->wait();
      at::Tensor expected = at::zeros({count});
      for (int r = 0; r < world.size(); ++r) {
        CHECK_EQUAL(all[r], input(r, {count}, at::kFloat));
        expected += input(r, {count}, at::kFloat).mul(0.5);
      }
      if (!is_reduce || world.rank() == 0) CHECK_CLOSE(own, expected, 1e-5, 1e-5);
    }
  }
}

TEST(Collectives, ComplexNumbers) {
  const World world = lockstep::testing::world();
  for (const auto dtype : {at::kComplexFloat, at::kComplexDouble}) {
    const auto of = [&](int rank) { return input(rank, {40, 50}, dtype).mul(c10::complex<double>(1, -2)); };
    at::Tensor expected = at::zeros({40, 50}, dtype);
    for (int r = 0; r < world.size(); ++r) expected += of(r);
    const at::Tensor strided = of(world.rank()).t().contiguous().t();
    world.all_reduce(strided);
    CHECK_EQUAL(strided, expected);
    const at::Tensor mean = of(world.rank());
    world.all_reduce_async(mean, {.op = ReduceOp::AVG})->wait();
    CHECK_CLOSE(mean, expected.div(world.size()), 1e-5, 1e-8);
    check_throws<ValueError>([&] { world.all_reduce(mean, {.op = ReduceOp::MAX}); }, "complex");
  }
}

TEST(Collectives, BroadcastOnlyReadsItsSource) {
  const bool is_source = world().rank() == 0;
  const at::Tensor strided = at::full({3, 4}, static_cast<float>(world().rank())).t();
  const auto before = strided._version();
  world().broadcast(strided);
  world().broadcast_async(strided)->wait();
  CHECK_TRUE(!is_source || strided._version() == before);
  CHECK_EACH(strided, 0);
  const at::Tensor repeated = is_source ? at::full({1}, 3.0F).expand({5}) : at::zeros({5});
  world().broadcast(repeated);
  CHECK_EACH(repeated, 3);
  world().broadcast_async(repeated)->wait();
  CHECK_EACH(repeated, 3);
}

// Their memory holds other numbers than they are.
TEST(Collectives, ConjugatedAndNegatedViews) {
  ONLY_IF(world().backend_name() == "lockstep");  // Gloo moves no complex numbers
  const at::Tensor number = at::complex(at::ones({5}), at::full({5}, 2.0F));
  const auto is_conjugate = [](const at::Tensor& moved) {
    return at::imag(moved.resolve_conj()).eq(-2).all().item<bool>();
  };
  const at::Tensor moved = world().rank() == 0 ? number.conj() : at::zeros_like(number);
  world().broadcast(moved);
  CHECK_TRUE(is_conjugate(moved));
  for (const at::Tensor& part : world().all_gather(number.conj())) CHECK_TRUE(is_conjugate(part));
  const at::Tensor into_view = at::zeros_like(number).conj();
  world().broadcast(world().rank() == 0 ? number.conj() : into_view);
  if (world().rank() != 0) CHECK_TRUE(is_conjugate(into_view));
  const at::Tensor sum = number.conj();
  world().all_reduce(sum);
  CHECK_EACH(at::imag(sum.resolve_conj()), -2.0 * world().size());
  const at::Tensor negated = at::_neg_view(at::ones({3}));
  for (const at::Tensor& part : world().all_gather(negated)) CHECK_EACH(part, -1);
  world().all_reduce(negated);
  CHECK_EACH(negated, -world().size());
}

/// Contiguous, but its memory holds the numbers with the other sign.
TEST(Collectives, NegatedViewsOfRealNumbers) {
  const World world = lockstep::testing::world();
  const bool is_first = world.rank() == 0;
  const auto negated = [] { return at::_neg_view(at::ones({3})); };
  const at::Tensor part = at::zeros({3});
  world.scatter(part, std::vector<at::Tensor>(is_first ? static_cast<size_t>(world.size()) : 0, negated()));
  CHECK_EACH(part, -1);
  for (const at::Tensor& gathered : world.gather(negated())) CHECK_EACH(gathered, -1);
  for (const at::Tensor& gathered : world.all_gather(negated())) CHECK_EACH(gathered, -1);
  const at::Tensor from_first = is_first ? negated() : at::zeros({3});
  world.broadcast(from_first);
  CHECK_EACH(from_first, -1);
  const at::Tensor sum = negated();
  world.all_reduce(sum);
  CHECK_EACH(sum, -world.size());
  const at::Tensor message = at::zeros({3});
  if (is_first && world.size() > 1) world.send(negated(), 1);
  if (world.rank() == 1) {
    world.recv(message, 0);
    CHECK_EACH(message, -1);
  }
}

TEST(Collectives, HalfPrecision) {
  const World world = lockstep::testing::world();
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::SUM, ReduceOp::PRODUCT, ReduceOp::MIN, ReduceOp::MAX}) {
      for (const int64_t count : {0, 3, 4000}) {
        SCOPED_CASE("{} {} [{}]", c10::toString(dtype), name_of(op), count);
        const auto of = [&](int rank) { return (at::arange(count) + rank).remainder(3).add(1).to(dtype); };
        std::vector<at::Tensor> all;
        for (int r = 0; r < world.size(); ++r) all.push_back(of(r).to(at::kDouble));
        const at::Tensor stacked = at::stack(all);
        const at::Tensor expected = op == ReduceOp::SUM       ? stacked.sum(0)
                                    : op == ReduceOp::PRODUCT ? stacked.prod(0)
                                    : op == ReduceOp::MIN     ? stacked.amin(0)
                                                              : stacked.amax(0);
        const at::Tensor tensor = of(world.rank());
        world.all_reduce(tensor, {.op = op});
        CHECK_EQUAL(tensor, expected.to(dtype));
      }
    }
    for (const int64_t count : {5, 30000}) {
      const at::Tensor tensor = input(world.rank(), {count}, dtype);
      world.all_reduce(tensor, {.op = ReduceOp::AVG});
      CHECK_CLOSE(tensor, reduced(world, {count}, dtype, ReduceOp::AVG), 1e-2, 1e-2);
    }
  }
}

TEST(Collectives, Layouts) {
  const World world = lockstep::testing::world();
  const at::Tensor transposed = input(world.rank(), {30, 40}, at::kFloat).t();
  world.all_reduce(transposed);
  CHECK_EQUAL(transposed, reduced(world, {30, 40}, at::kFloat, ReduceOp::SUM).t());
  const at::Tensor strided = input(world.rank(), {30, 40}, at::kFloat).slice(1, 0, 40, 3);
  world.broadcast(strided, {.src = world.size() - 1});
  CHECK_EQUAL(strided, input(world.size() - 1, {30, 40}, at::kFloat).slice(1, 0, 40, 3));
  const at::Tensor asynchronous = input(world.rank(), {30, 40}, at::kFloat).t();
  world.all_reduce_async(asynchronous)->wait();
  CHECK_EQUAL(asynchronous, transposed);
  // Parameters that require gradients may be sent too.
  at::Tensor leaf = input(world.rank(), {10}, at::kFloat).requires_grad_();
  world.broadcast(leaf);
  CHECK_EQUAL(leaf.detach(), input(0, {10}, at::kFloat));
  const at::Tensor average = reduced(world, {10}, at::kFloat, ReduceOp::AVG);
  const auto averaged = [&](const auto& reduce) {
    at::Tensor own = input(world.rank(), {10}, at::kFloat).requires_grad_();
    reduce(own);
    CHECK_TRUE(own.is_leaf());
    CHECK_EQUAL(own.detach(), average);
    const at::Tensor twice = input(world.rank(), {10}, at::kFloat).requires_grad_() * 1;
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): the tensor's own may become another
    const auto origin = twice.grad_fn();
    reduce(twice);
    CHECK_TRUE(twice.grad_fn() == origin);
    CHECK_EQUAL(twice.detach(), average);
  };
  averaged([&](const at::Tensor& t) { world.all_reduce(t, {.op = ReduceOp::AVG}); });
  averaged([&](const at::Tensor& t) { world.all_reduce_async(t, {.op = ReduceOp::AVG})->wait(); });
  averaged([&](const at::Tensor& t) { world.all_reduce_coalesced({t}, {.op = ReduceOp::AVG}); });
}

TEST(Collectives, GatherAndBytes) {
  const World world = lockstep::testing::world();
  for (const auto dtype : {at::kFloat, at::kBool, at::kBFloat16, at::kLong}) {
    const auto gathered = world.all_gather(input(world.rank(), {7, 300}, dtype));
    for (int r = 0; r < world.size(); ++r) {
      CHECK_EQUAL(gathered.at(static_cast<size_t>(r)), input(r, {7, 300}, dtype));
    }
  }
  const auto text = [](int rank) {
    return std::string(static_cast<size_t>(rank) * 20000, static_cast<char>('a' + rank));
  };
  const auto all = world.all_gather_bytes(text(world.rank()));
  for (int r = 0; r < world.size(); ++r) CHECK_TRUE(all.at(static_cast<size_t>(r)) == text(r));
  CHECK_TRUE(world.broadcast_bytes(text(world.rank()), {.src = world.size() - 1}) == text(world.size() - 1));
  world.barrier();
}

TEST(Collectives, ReduceAndScatter) {
  const World world = lockstep::testing::world();
  const int size = world.size();
  for (int root = 0; root < size; ++root) {
    const at::Tensor tensor = input(world.rank(), {50, 300}, at::kFloat).t();
    world.reduce(tensor, {.dst = root});
    if (world.rank() == root) CHECK_EQUAL(tensor, reduced(world, {50, 300}, at::kFloat, ReduceOp::SUM).t());
    for (const int64_t rows : {0, 1, 200}) {
      std::vector<at::Tensor> parts;
      for (int r = 0; r < size && world.rank() == root; ++r) parts.push_back(input(r, {rows, 70}, at::kInt));
      const at::Tensor part = at::empty({rows, 70}, at::kInt);
      world.scatter(part, parts, {.src = root});
      CHECK_EQUAL(part, input(world.rank(), {rows, 70}, at::kInt));
      const auto gathered = world.gather(part, {.dst = root});
      CHECK_TRUE(gathered.size() == (world.rank() == root ? static_cast<size_t>(size) : 0));
      for (size_t r = 0; r < gathered.size(); ++r) {
        CHECK_EQUAL(gathered[r], input(static_cast<int>(r), {rows, 70}, at::kInt));
      }
    }
  }
  const at::Tensor whole = input(world.rank(), {size * 40, 30}, at::kLong);
  const at::Tensor expected = reduced(world, {size * 40, 30}, at::kLong, ReduceOp::MAX);
  const at::Tensor block = at::empty({40, 30}, at::kLong);
  world.reduce_scatter_tensor(block, whole, {.op = ReduceOp::MAX});
  CHECK_EQUAL(block, expected.narrow(0, world.rank() * 40, 40));
  block.zero_();
  world.reduce_scatter(block, whole.chunk(size), {.op = ReduceOp::MAX});
  CHECK_EQUAL(block, expected.narrow(0, world.rank() * 40, 40));
  const at::Tensor all = at::empty({size * 40, 30}, at::kLong);
  world.all_gather_into_tensor(all, block);
  CHECK_EQUAL(all, expected);
}

TEST(Collectives, AllToAll) {
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank();
  const at::Tensor rows = input(self, {size * 5, 40}, at::kFloat);
  const at::Tensor received = at::empty_like(rows);
  world.all_to_all_single(received, rows);
  for (int r = 0; r < size; ++r) {
    CHECK_EQUAL(received.narrow(0, r * 5, 5), input(r, {size * 5, 40}, at::kFloat).narrow(0, self * 5, 5));
  }
  // Rank a sends a + b + 1 rows to rank b.
  std::vector<int64_t> splits;
  std::vector<at::Tensor> inputs, outputs;
  int64_t total = 0;
  for (int r = 0; r < size; ++r) {
    splits.push_back(self + r + 1);
    total += splits.back();
    inputs.push_back(at::full({self + r + 1, 900}, self * 10 + r, at::kFloat));
    outputs.push_back(at::empty({self + r + 1, 900}));
  }
  const at::Tensor uneven = at::empty({total, 900});
  world.all_to_all_single(uneven, at::cat(inputs), splits, splits);
  world.all_to_all(outputs, inputs);
  CHECK_EQUAL(uneven, at::cat(outputs));
  for (int r = 0; r < size; ++r) CHECK_EACH(outputs[static_cast<size_t>(r)], r * 10 + self);
  const auto gathered = world.all_gather_uneven(at::full({self * 2, 3}, self, at::kInt));
  for (int r = 0; r < size; ++r)
    CHECK_EQUAL(gathered[static_cast<size_t>(r)], at::full({r * 2, 3}, r, at::kInt));
}

/// What is only moved may be of any dtype: `count` elements whose bytes tell who made them.
at::Tensor raw(int rank, int64_t count, at::ScalarType dtype) {
  const auto bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
  const at::Tensor period = at::arange(113).add(rank * 5 + 1).remainder(113).to(at::kByte);
  return period.repeat({bytes / 113 + 1}).narrow(0, 0, bytes).view(dtype);
}

void check_bytes(const at::Tensor& found, const at::Tensor& expected) {
  CHECK_TRUE(found.scalar_type() == expected.scalar_type());
  CHECK_EQUAL(found.contiguous().view(at::kByte), expected.contiguous().view(at::kByte));
}

TEST(Collectives, MovedDtypes) {
  ONLY_IF(world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  const int size = world.size(), self = world.rank(), last = size - 1;
  for (const auto dtype :
       {at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexHalf, at::kComplexFloat, at::kComplexDouble,
        at::kFloat8_e4m3fn, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2, at::kFloat8_e5m2fnuz, at::kFloat8_e8m0fnu,
        at::kShort, at::kHalf, at::kBFloat16, at::kBool}) {
    for (const int64_t count : {3, 900, 50000}) {
      SCOPED_CASE("{} [{}]", c10::toString(dtype), count);
      std::vector<at::Tensor> values;  // of each rank; as many as it takes for an all-to-all
      for (int r = 0; r < size; ++r) {
        const at::Tensor tensor = raw(r, size * count, dtype);
        values.push_back(dtype == at::kBool ? tensor.view(at::kByte).remainder(2).view(at::kBool) : tensor);
      }
      const auto of = [&](int rank, int64_t how_many) {
        return values[static_cast<size_t>(rank)].narrow(0, 0, how_many).clone();
      };
      const at::Tensor copied = of(self, count);
      world.broadcast(copied, {.src = last});
      check_bytes(copied, of(last, count));
      const auto gathered = world.all_gather(of(self, count));
      const auto at_last = world.gather(of(self, count), {.dst = last});
      const at::Tensor into = at::empty({size * count}, dtype), part = at::empty({count}, dtype);
      world.all_gather_into_tensor(into, of(self, count));
      for (int r = 0; r < size; ++r) {
        check_bytes(gathered[static_cast<size_t>(r)], of(r, count));
        check_bytes(into.narrow(0, r * count, count), of(r, count));
        if (self == last) check_bytes(at_last[static_cast<size_t>(r)], of(r, count));
      }
      world.scatter(part, self == last ? gathered : std::vector<at::Tensor>(), {.src = last});
      check_bytes(part, of(self, count));
      const at::Tensor swapped = at::empty({size * count}, dtype);
      world.all_to_all_single(swapped, of(self, size * count));
      for (int r = 0; r < size; ++r) {
        check_bytes(swapped.narrow(0, r * count, count),
                    values[static_cast<size_t>(r)].narrow(0, self * count, count));
      }
      const auto send = world.isend(of(self, count), (self + 1) % size);
      const at::Tensor received = at::empty({count}, dtype);
      world.recv(received, (self + size - 1) % size);
      send->wait();
      check_bytes(received, of((self + size - 1) % size, count));
    }
  }
  for (const auto dtype : {at::kUInt16, at::kUInt32, at::kUInt64}) {
    const at::Tensor sum = at::full({7}, 3 + self, at::kLong).to(dtype), most = sum.clone();
    world.all_reduce(sum);
    world.all_reduce(most, {.op = ReduceOp::MAX});
    CHECK_EACH(sum.to(at::kLong), 3 * size + size * (size - 1) / 2);
    CHECK_EACH(most.to(at::kLong), 3 + last);
  }
  check_throws<ValueError>([&] { world.all_reduce(raw(self, 5, at::kFloat8_e5m2)); },
                           "a reduction cannot combine float8_e5m2 by SUM");
  const at::Tensor quantized = at::quantize_per_tensor(at::rand({4}), 0.1, 3, at::kQInt8);
  check_throws<ValueError>([&] { world.broadcast(quantized); }, "does not take tensors of dtype QInt8");
}

TEST(Collectives, Messages) {
  const World world = lockstep::testing::world();
  const int next = (world.rank() + 1) % world.size(),
            previous = (world.rank() + world.size() - 1) % world.size();
  if (world.size() == 1 && world.backend_name() != "lockstep") return;  // Gloo does not send to itself
  for (const int64_t count : {1, 1000, 200000}) {
    std::vector<P2POp> operations;
    const at::Tensor received = at::empty({count});
    const at::Tensor strided = at::empty({count, 2}).select(1, 1);
    operations.push_back({P2POp::Kind::irecv, received, previous});
    operations.push_back({P2POp::Kind::irecv, strided, previous, 5});
    operations.push_back({P2POp::Kind::isend, input(world.rank(), {count}, at::kFloat), next, 5});
    operations.push_back({P2POp::Kind::isend, input(world.rank(), {count}, at::kFloat).neg(), next});
    for (const auto& work : world.batch_isend_irecv(operations)) work->wait();
    CHECK_EQUAL(received, input(previous, {count}, at::kFloat).neg());
    CHECK_EQUAL(strided, input(previous, {count}, at::kFloat));
  }
  // To rank 0 from whoever comes.
  const at::Tensor value = at::full({4}, world.rank(), at::kLong);
  if (world.rank() != 0) {
    world.send(value, 0, {.tag = 3});
    return;
  }
  for (int n = 1; n < world.size(); ++n) {
    const int source = world.recv(value, std::nullopt, {.tag = 3});
    CHECK_TRUE(source > 0);
    CHECK_EACH(value, source);
  }
}

TEST(Collectives, AMessageGoesOnAfterAShortWait) {
  const World world = lockstep::testing::world();
  ONLY_IF(world.size() > 1);
  const bool is_receiver = world.rank() == 0, is_sender = world.rank() == 1;
  for (const int64_t count : {1, 1000, 1000000}) {
    const at::Tensor value = input(1, {count}, at::kFloat), received = at::zeros({count});
    std::shared_ptr<Work> work;
    if (is_receiver) {
      work = world.irecv(received, 1);
      for (const auto timeout : {0ms, 50ms, 1ms}) {
        check_throws<TimeoutError>([&] { work->wait(timeout); }, "");
        CHECK_TRUE(work->exception() == nullptr);
      }
    }
    world.barrier();
    if (is_sender) world.send(value, 0);
    if (is_receiver) {
      work->wait();
      CHECK_TRUE(work->source_rank() == 1);
      CHECK_EQUAL(received, value);
    }
    if (is_sender) {
      work = world.isend(value, 0);
      // The backend "lockstep" may have room for it.
      if (world.backend_name() != "lockstep")
        check_throws<TimeoutError>([&] { work->wait(50ms); }, "has not ended within 50 ms");
    }
    world.barrier();
    if (is_receiver) {
      received.zero_();
      world.recv(received, 1);
      CHECK_EQUAL(received, value);
    }
    if (is_sender) work->wait();
  }
  world.barrier();
}

TEST(Collectives, GlooHasNoMessagesToOneself) {
  ONLY_IF(world().backend_name() == "gloo");
  const World world = lockstep::testing::world();
  const at::Tensor tensor = at::zeros({3});
  const std::string why = "has no messages to the rank itself";
  check_throws<ValueError>([&] { world.recv(tensor, world.rank()); }, why);
  check_throws<ValueError>([&] { world.irecv(tensor, world.rank()); }, why);
  check_throws<ValueError>([&] { world.send(tensor, world.rank()); }, why);
  check_throws<ValueError>([&] { world.isend(tensor, world.rank()); }, why);
  world.barrier();
}

TEST(Collectives, SharedTensors) {
  const World world = lockstep::testing::world();
  const at::Tensor own = input(world.rank(), {300, 1000}, at::kFloat);
  const at::Tensor expected = reduced(world, {300, 1000}, at::kFloat, ReduceOp::MAX);
  for (int round = 0; round < 50; ++round) {
    const at::Tensor tensor = world.empty_shared({300, 1000}, at::kFloat);
    tensor.copy_(own);
    const auto work = world.all_reduce_async(tensor, {.op = ReduceOp::MAX});
    while (!work->is_completed()) std::this_thread::yield();
    CHECK_EQUAL(tensor, expected);
  }
}

TEST(Collectives, C10dBackend) {
  ONLY_IF(world().backend_name() == "lockstep");
  const World world = lockstep::testing::world();
  const auto backend = world.backend();
  CHECK_TRUE(backend->getBackendName() == world.backend_name());
  std::vector<at::Tensor> tensors{input(world.rank(), {1000}, at::kFloat)};
  const auto work = backend->allreduce(tensors);
  work->wait();
  CHECK_EQUAL(tensors[0], reduced(world, {1000}, at::kFloat, ReduceOp::SUM));
  at::Tensor swapped = at::empty({world.size() * 3}, at::kLong);
  at::Tensor sent = at::arange(world.size() * 3).add(world.rank() * 100);
  std::vector<int64_t> even;
  backend->alltoall_base(swapped, sent, even, even)->wait();
  for (int r = 0; r < world.size(); ++r) {
    CHECK_EQUAL(swapped.narrow(0, r * 3, 3), at::arange(3).add(world.rank() * 3 + r * 100));
  }
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int r = 0; r < world.size(); ++r) outputs[0].push_back(at::empty({5}, at::kLong));
  std::vector<at::Tensor> inputs{input(world.rank(), {5}, at::kLong)};
  backend->allgather(outputs, inputs)->wait();
  for (int r = 0; r < world.size(); ++r)
    CHECK_EQUAL(outputs[0][static_cast<size_t>(r)], input(r, {5}, at::kLong));
  backend->barrier()->wait();
}

}  // namespace
