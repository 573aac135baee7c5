// Collectives on tensors, checked against what LibTorch computes on one rank from everybody's inputs.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/quantize_per_tensor.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <csignal>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "tests/comm/group_cases.h"
#include "tests/rank_cases.h"

using namespace lockstep;
using lockstep::testing::check_throws;

/// The job, joined by the first case that asks.
World joined() {
  if (is_initialized()) return default_world();
  InitOptions options;
  options.init_method = env::get("TEST_INIT_METHOD").value_or("");
  options.rank = static_cast<int>(env::get_int("TEST_RANK").value_or(-1));
  options.world_size = static_cast<int>(env::get_int("TEST_WORLD_SIZE").value_or(-1));
  options.timeout = std::chrono::milliseconds(env::get_int("TEST_TIMEOUT_MS").value_or(60000));
  if (const auto path = env::get("TEST_STORE_FILE")) {
    return init(c10::make_intrusive<c10d::FileStore>(*path, options.world_size), options);
  }
  return init(options);
}

namespace {

/// The same on every rank that computes it: the input of `rank`.
at::Tensor input(int rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kLong).mul_(rank + 3).remainder(17) + rank).to(dtype).view(sizes);
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

void all_reduce() {
  const World world = joined();
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
        const at::Tensor tensor = input(world.rank(), sizes, dtype);
        world.all_reduce(tensor, {.op = op});
        CHECK_TRUE(tensor.equal(reduced(world, sizes, dtype, op)));
      }
    }
  }
}

void premul_sum() {
  const World world = joined();
  const auto factor = [](int rank) { return rank + 0.5; };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kComplexFloat, at::kBFloat16}) {
    for (const int64_t count : {7, 60000}) {
      at::Tensor expected = at::zeros({count}, dtype);
      for (int r = 0; r < world.size(); ++r) expected += input(r, {count}, dtype).mul(factor(r));
      const at::Tensor whole = input(world.rank(), {count}, dtype);
      world.all_reduce(whole, {.op = ReduceOp::PREMUL_SUM, .premul_factor = factor(world.rank())});
      CHECK_TRUE(whole.allclose(expected, 0.02, 0.02));
      const at::Tensor blocks = at::cat(
          std::vector<at::Tensor>(static_cast<size_t>(world.size()), input(world.rank(), {count}, dtype)));
      const at::Tensor before = blocks.clone(), block = at::empty({count}, dtype);
      world.reduce_scatter_tensor(block, blocks,
                                  {.op = ReduceOp::PREMUL_SUM, .premul_factor = factor(world.rank())});
      CHECK_TRUE(block.allclose(expected, 0.02, 0.02) && blocks.equal(before));
    }
  }
  check_throws<ValueError>([&] { world.all_reduce(at::ones({3}, at::kInt), {.op = ReduceOp::PREMUL_SUM}); },
                           "PREMUL_SUM");
}

void complex_numbers() {
  const World world = joined();
  for (const auto dtype : {at::kComplexFloat, at::kComplexDouble}) {
    const auto of = [&](int rank) { return input(rank, {40, 50}, dtype).mul(c10::complex<double>(1, -2)); };
    at::Tensor expected = at::zeros({40, 50}, dtype);
    for (int r = 0; r < world.size(); ++r) expected += of(r);
    const at::Tensor strided = of(world.rank()).t().contiguous().t();
    world.all_reduce(strided);
    CHECK_TRUE(strided.equal(expected));
    const at::Tensor mean = of(world.rank());
    world.all_reduce_async(mean, {.op = ReduceOp::AVG})->wait();
    CHECK_TRUE(mean.allclose(expected.div(world.size())));
    check_throws<ValueError>([&] { world.all_reduce(mean, {.op = ReduceOp::MAX}); }, "complex");
  }
}

void half_precision() {
  const World world = joined();
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const auto op : {ReduceOp::SUM, ReduceOp::PRODUCT, ReduceOp::MIN, ReduceOp::MAX}) {
      for (const int64_t count : {0, 3, 4000}) {
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
        CHECK_TRUE(tensor.equal(expected.to(dtype)));
      }
    }
    for (const int64_t count : {5, 30000}) {
      const at::Tensor tensor = input(world.rank(), {count}, dtype);
      world.all_reduce(tensor, {.op = ReduceOp::AVG});
      CHECK_TRUE(tensor.allclose(reduced(world, {count}, dtype, ReduceOp::AVG), 1e-2, 1e-2));
    }
  }
}

void layouts() {
  const World world = joined();
  const at::Tensor transposed = input(world.rank(), {30, 40}, at::kFloat).t();
  world.all_reduce(transposed);
  CHECK_TRUE(transposed.equal(reduced(world, {30, 40}, at::kFloat, ReduceOp::SUM).t()));
  const at::Tensor strided = input(world.rank(), {30, 40}, at::kFloat).slice(1, 0, 40, 3);
  world.broadcast(strided, {.src = world.size() - 1});
  CHECK_TRUE(strided.equal(input(world.size() - 1, {30, 40}, at::kFloat).slice(1, 0, 40, 3)));
  const at::Tensor asynchronous = input(world.rank(), {30, 40}, at::kFloat).t();
  world.all_reduce_async(asynchronous)->wait();
  CHECK_TRUE(asynchronous.equal(transposed));
  // Parameters that require gradients may be sent too.
  at::Tensor leaf = input(world.rank(), {10}, at::kFloat).requires_grad_();
  world.broadcast(leaf);
  CHECK_TRUE(leaf.detach().equal(input(0, {10}, at::kFloat)));
  const at::Tensor average = reduced(world, {10}, at::kFloat, ReduceOp::AVG);
  const auto averaged = [&](const auto& reduce) {
    at::Tensor own = input(world.rank(), {10}, at::kFloat).requires_grad_();
    reduce(own);
    CHECK_TRUE(own.is_leaf() && own.detach().equal(average));
    const at::Tensor twice = input(world.rank(), {10}, at::kFloat).requires_grad_() * 1;
    const auto origin = twice.grad_fn();
    reduce(twice);
    CHECK_TRUE(twice.grad_fn() == origin && twice.detach().equal(average));
  };
  averaged([&](const at::Tensor& t) { world.all_reduce(t, {.op = ReduceOp::AVG}); });
  averaged([&](const at::Tensor& t) { world.all_reduce_async(t, {.op = ReduceOp::AVG})->wait(); });
  averaged([&](const at::Tensor& t) { world.all_reduce_coalesced({t}, {.op = ReduceOp::AVG}); });
}

void gather_and_bytes() {
  const World world = joined();
  for (const auto dtype : {at::kFloat, at::kBool, at::kBFloat16, at::kLong}) {
    const auto gathered = world.all_gather(input(world.rank(), {7, 300}, dtype));
    for (int r = 0; r < world.size(); ++r) {
      CHECK_TRUE(gathered.at(static_cast<size_t>(r)).equal(input(r, {7, 300}, dtype)));
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

void reduce_and_scatter() {
  const World world = joined();
  const int size = world.size();
  for (int root = 0; root < size; ++root) {
    const at::Tensor tensor = input(world.rank(), {50, 300}, at::kFloat).t();
    world.reduce(tensor, {.dst = root});
    if (world.rank() == root)
      CHECK_TRUE(tensor.equal(reduced(world, {50, 300}, at::kFloat, ReduceOp::SUM).t()));
    for (const int64_t rows : {0, 1, 200}) {
      std::vector<at::Tensor> parts;
      for (int r = 0; r < size && world.rank() == root; ++r) parts.push_back(input(r, {rows, 70}, at::kInt));
      const at::Tensor part = at::empty({rows, 70}, at::kInt);
      world.scatter(part, parts, {.src = root});
      CHECK_TRUE(part.equal(input(world.rank(), {rows, 70}, at::kInt)));
      const auto gathered = world.gather(part, {.dst = root});
      CHECK_TRUE(gathered.size() == (world.rank() == root ? static_cast<size_t>(size) : 0));
      for (size_t r = 0; r < gathered.size(); ++r) {
        CHECK_TRUE(gathered[r].equal(input(static_cast<int>(r), {rows, 70}, at::kInt)));
      }
    }
  }
  const at::Tensor whole = input(world.rank(), {size * 40, 30}, at::kLong);
  const at::Tensor expected = reduced(world, {size * 40, 30}, at::kLong, ReduceOp::MAX);
  const at::Tensor block = at::empty({40, 30}, at::kLong);
  world.reduce_scatter_tensor(block, whole, {.op = ReduceOp::MAX});
  CHECK_TRUE(block.equal(expected.narrow(0, world.rank() * 40, 40)));
  block.zero_();
  world.reduce_scatter(block, whole.chunk(size), {.op = ReduceOp::MAX});
  CHECK_TRUE(block.equal(expected.narrow(0, world.rank() * 40, 40)));
  const at::Tensor all = at::empty({size * 40, 30}, at::kLong);
  world.all_gather_into_tensor(all, block);
  CHECK_TRUE(all.equal(expected));
}

void all_to_all() {
  const World world = joined();
  const int size = world.size(), self = world.rank();
  const at::Tensor rows = input(self, {size * 5, 40}, at::kFloat);
  const at::Tensor received = at::empty_like(rows);
  world.all_to_all_single(received, rows);
  for (int r = 0; r < size; ++r) {
    CHECK_TRUE(
        received.narrow(0, r * 5, 5).equal(input(r, {size * 5, 40}, at::kFloat).narrow(0, self * 5, 5)));
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
  CHECK_TRUE(uneven.equal(at::cat(outputs)));
  for (int r = 0; r < size; ++r)
    CHECK_TRUE(outputs[static_cast<size_t>(r)].eq(r * 10 + self).all().item<bool>());
  const auto gathered = world.all_gather_uneven(at::full({self * 2, 3}, self, at::kInt));
  for (int r = 0; r < size; ++r)
    CHECK_TRUE(gathered[static_cast<size_t>(r)].equal(at::full({r * 2, 3}, r, at::kInt)));
}

/// What is only moved may be of any dtype: `count` elements whose bytes tell who made them.
at::Tensor raw(int rank, int64_t count, at::ScalarType dtype) {
  const auto bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
  return at::arange(bytes).add(rank * 5 + 1).remainder(113).to(at::kByte).view(dtype);
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() &&
         a.contiguous().view(at::kByte).equal(b.contiguous().view(at::kByte));
}

void moved_dtypes() {
  const World world = joined();
  const int size = world.size(), self = world.rank(), last = size - 1;
  for (const auto dtype :
       {at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexHalf, at::kComplexFloat, at::kComplexDouble,
        at::kFloat8_e4m3fn, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2, at::kFloat8_e5m2fnuz, at::kFloat8_e8m0fnu,
        at::kShort, at::kHalf, at::kBFloat16, at::kBool}) {
    const auto of = [&](int rank, int64_t count) {
      const at::Tensor tensor = raw(rank, count, dtype);
      return dtype == at::kBool ? tensor.view(at::kByte).remainder(2).view(at::kBool) : tensor;
    };
    for (const int64_t count : {3, 900, 50000}) {
      const at::Tensor copied = of(self, count);
      world.broadcast(copied, {.src = last});
      CHECK_TRUE(same(copied, of(last, count)));
      const auto gathered = world.all_gather(of(self, count));
      const auto at_last = world.gather(of(self, count), {.dst = last});
      const at::Tensor into = at::empty({size * count}, dtype), part = at::empty({count}, dtype);
      world.all_gather_into_tensor(into, of(self, count));
      for (int r = 0; r < size; ++r) {
        CHECK_TRUE(same(gathered[static_cast<size_t>(r)], of(r, count)));
        CHECK_TRUE(same(into.narrow(0, r * count, count), of(r, count)));
        if (self == last) CHECK_TRUE(same(at_last[static_cast<size_t>(r)], of(r, count)));
      }
      world.scatter(part, self == last ? gathered : std::vector<at::Tensor>(), {.src = last});
      CHECK_TRUE(same(part, of(self, count)));
      const at::Tensor swapped = at::empty({size * count}, dtype);
      world.all_to_all_single(swapped, of(self, size * count));
      for (int r = 0; r < size; ++r) {
        CHECK_TRUE(
            same(swapped.narrow(0, r * count, count), of(r, size * count).narrow(0, self * count, count)));
      }
      const auto send = world.isend(of(self, count), (self + 1) % size);
      const at::Tensor received = at::empty({count}, dtype);
      world.recv(received, (self + size - 1) % size);
      send->wait();
      CHECK_TRUE(same(received, of((self + size - 1) % size, count)));
    }
  }
  for (const auto dtype : {at::kUInt16, at::kUInt32, at::kUInt64}) {
    const at::Tensor sum = at::full({7}, 3 + self, at::kLong).to(dtype), most = sum.clone();
    world.all_reduce(sum);
    world.all_reduce(most, {.op = ReduceOp::MAX});
    CHECK_TRUE(sum.to(at::kLong).eq(3 * size + size * (size - 1) / 2).all().item<bool>());
    CHECK_TRUE(most.to(at::kLong).eq(3 + last).all().item<bool>());
  }
  check_throws<ValueError>([&] { world.all_reduce(raw(self, 5, at::kFloat8_e5m2)); },
                           "a reduction cannot combine float8_e5m2 by SUM");
  const at::Tensor quantised = at::quantize_per_tensor(at::rand({4}), 0.1, 3, at::kQInt8);
  check_throws<ValueError>([&] { world.broadcast(quantised); }, "does not take tensors of dtype QInt8");
}

void messages() {
  const World world = joined();
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
    CHECK_TRUE(received.equal(input(previous, {count}, at::kFloat).neg()));
    CHECK_TRUE(strided.equal(input(previous, {count}, at::kFloat)));
  }
  // To rank 0 from whoever comes.
  const at::Tensor value = at::full({4}, world.rank(), at::kLong);
  if (world.rank() != 0) {
    world.send(value, 0, {.tag = 3});
    return;
  }
  for (int n = 1; n < world.size(); ++n) {
    const int source = world.recv(value, std::nullopt, {.tag = 3});
    CHECK_TRUE(source > 0 && value.eq(source).all().item<bool>());
  }
}

void shared_tensors() {
  const World world = joined();
  for (int round = 0; round < 50; ++round) {
    const at::Tensor tensor = world.empty_shared({300, 1000}, at::kFloat);
    tensor.copy_(input(world.rank(), {300, 1000}, at::kFloat));
    const auto work = world.all_reduce_async(tensor, {.op = ReduceOp::MAX});
    while (!work->is_completed()) {
    }
    CHECK_TRUE(tensor.equal(reduced(world, {300, 1000}, at::kFloat, ReduceOp::MAX)));
  }
}

void c10d_backend() {
  const World world = joined();
  const auto backend = world.backend();
  CHECK_TRUE(backend->getBackendName() == world.backend_name());
  std::vector<at::Tensor> tensors{input(world.rank(), {1000}, at::kFloat)};
  const auto work = backend->allreduce(tensors);
  work->wait();
  CHECK_TRUE(tensors[0].equal(reduced(world, {1000}, at::kFloat, ReduceOp::SUM)));
  at::Tensor swapped = at::empty({world.size() * 3}, at::kLong);
  at::Tensor sent = at::arange(world.size() * 3).add(world.rank() * 100);
  std::vector<int64_t> even;
  backend->alltoall_base(swapped, sent, even, even)->wait();
  for (int r = 0; r < world.size(); ++r) {
    CHECK_TRUE(swapped.narrow(0, r * 3, 3).equal(at::arange(3).add(world.rank() * 3 + r * 100)));
  }
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int r = 0; r < world.size(); ++r) outputs[0].push_back(at::empty({5}, at::kLong));
  std::vector<at::Tensor> inputs{input(world.rank(), {5}, at::kLong)};
  backend->allgather(outputs, inputs)->wait();
  for (int r = 0; r < world.size(); ++r)
    CHECK_TRUE(outputs[0][static_cast<size_t>(r)].equal(input(r, {5}, at::kLong)));
  backend->barrier()->wait();
}

void refusals() {
  const World world = joined();
  CHECK_TRUE(world.local_rank() == world.rank() && world.local_world_size() == world.size());
  check_throws<Error>([] { init(); }, "was called before");
  check_throws<ValueError>([&] { world.all_reduce(at::zeros({3}, at::kLong), {.op = ReduceOp::AVG}); },
                           "a reduction cannot combine int64 by AVG");
  check_throws<ValueError>([&] { world.broadcast(at::zeros({3}), {.src = world.size()}); },
                           "is outside the group");
  world.barrier();
  // Refused before anything was sent: the group still works. A mismatch breaks it.
  if (world.size() > 1) {
    const auto mismatch = [&] { world.all_reduce(at::zeros({world.rank() + 1})); };
    check_throws<MismatchError>(mismatch, "rank 0 called all_reduce #");
    check_throws<MismatchError>([&] { world.barrier(); }, "rank 0 called all_reduce #");
  }
}

/// Prints where this process finds itself, and uses the stores.
void place() {
  const World world = joined();
  const auto store = default_store();
  const auto named = c10::make_intrusive<c10d::PrefixStore>("case", store);
  named->set(std::to_string(world.rank()), std::to_string(world.rank() * 7));
  for (int r = 0; r < world.size(); ++r) {
    const auto value = named->get(std::to_string(r));
    CHECK_TRUE(std::string(value.begin(), value.end()) == std::to_string(r * 7));
  }
  std::printf("rank %d of %d, local %d of %d, node %d, %s\n", world.rank(), world.size(), world.local_rank(),
              world.local_world_size(), world.group_rank(), world.backend_name().c_str());
  world.barrier();
}

void ten_operations_then_exit() {
  const World world = joined();
  for (int i = 0; i < 10; ++i) world.all_reduce(at::zeros({100000}));
}

void rank_one_dies() {
  const World world = joined();
  world.barrier();
  if (world.rank() == 1) ::raise(SIGKILL);
  check_throws<PeerLostError>([&] { world.all_reduce(at::zeros({100000})); }, "lost rank 1");
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::testing::run_case(argc, argv,
                                     {{"all_reduce", all_reduce},
                                      {"half_precision", half_precision},
                                      {"premul_sum", premul_sum},
                                      {"complex_numbers", complex_numbers},
                                      {"layouts", layouts},
                                      {"gather_and_bytes", gather_and_bytes},
                                      {"reduce_and_scatter", reduce_and_scatter},
                                      {"all_to_all", all_to_all},
                                      {"messages", messages},
                                      {"shared_tensors", shared_tensors},
                                      {"c10d_backend", c10d_backend},
                                      {"refusals", refusals},
                                      {"place", place},
                                      {"ten_operations_then_exit", ten_operations_then_exit},
                                      {"rank_one_dies", rank_one_dies},
                                      {"async_forms", async_forms},
                                      {"coalesced", coalesced},
                                      {"works", works},
                                      {"abandoned_works", abandoned_works},
                                      {"objects", objects},
                                      {"hostile_objects", hostile_objects},
                                      {"forked_copies", forked_copies},
                                      {"groups_in_threads", groups_in_threads},
                                      {"joined_again", joined_again},
                                      {"moved_dtypes", moved_dtypes},
                                      {"new_groups", new_groups},
                                      {"group_refusals", group_refusals},
                                      {"mesh", mesh},
                                      {"many_groups", many_groups},
                                      {"late_for_monitored_barrier", late_for_monitored_barrier},
                                      {"late_for_a_sum", late_for_a_sum},
                                      {"parts_of_tensors", parts_of_tensors},
                                      {"parts_need_shared_memory", parts_need_shared_memory},
                                      {"memory_in_common", memory_in_common},
                                      {"memory_stays", memory_stays}});
}
