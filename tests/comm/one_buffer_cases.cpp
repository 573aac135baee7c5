// Operations whose tensors lie over each other, in flight together.
//
// LOCKSTEP_FUZZ_SEED: the first random program's seed. LOCKSTEP_FUZZ_PROGRAMS: how many.
#include <ATen/ops/arange.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/comm/process_group/impl.h"
#include "tests/ranks/rank_test.h"

using namespace lockstep;
using lockstep::testing::world;

namespace {

using Random = std::mt19937_64;
using WorkPtr = std::shared_ptr<Work>;

/// Collectives of contiguous parts of one buffer: each rank draws the same kinds and places.
class Program {
 public:
  static constexpr int64_t kElements = 600000;

  Program(const ProcessGroup& group, uint64_t seed, bool waits)
      : group_(group),
        random_(seed),
        waits_(waits),
        has_one_memory_(group.impl().traits().one_memory),
        buffer_(at::arange(kElements, at::kInt)) {
    buffer_.mul_(group.rank() + 1).remainder_(100003);
  }

  at::Tensor run() {
    for (size_t left = 3 + pick(12); left > 0; --left) {
      const WorkPtr work = start();
      if (waits_) work->wait();
      if (pick(4) == 0) kept_.push_back(work);
    }
    group_.barrier();
    for (const WorkPtr& work : kept_) work->wait();
    group_.barrier();  // Gloo may end a barrier before what was started earlier
    return buffer_;
  }

 private:
  int64_t pick(size_t below) { return static_cast<int64_t>(random_() % below); }

  /// From a few elements, which lie in the posts, to more than a window.
  int64_t pick_count() {
    static constexpr std::array<size_t, 4> kMost{40, 2000, 30000, 280000};
    return 1 + pick(kMost.at(static_cast<size_t>(pick(kMost.size()))));
  }
  at::Tensor part(const at::Tensor& of, int64_t count) {
    return of.narrow(0, pick(static_cast<size_t>(of.numel() - count + 1)), count);
  }

  WorkPtr start() {
    const int64_t size = group_.size(), count = pick_count(), each = 1 + count / size;
    const auto kind = pick(has_one_memory_ ? 6 : 4);
    if (kind < 3) {
      const at::Tensor tensor = part(buffer_, count);
      if (kind == 0) return group_.all_reduce_async(tensor, {.op = ReduceOp::BXOR});
      if (kind == 1) return group_.all_reduce_async(tensor, {.op = ReduceOp::MAX});
      return group_.broadcast_async(tensor, {.src = static_cast<int>(pick(static_cast<size_t>(size)))});
    }
    // Their input lies apart from their output.
    const std::vector<at::Tensor> halves = buffer_.chunk(2);
    const auto half = static_cast<size_t>(pick(2));
    const at::Tensor one = part(halves.at(half), each), all = part(halves.at(1 - half), size * each);
    if (kind == 3) return group_.all_gather_into_tensor_async(all, one);
    if (kind == 4) return group_.reduce_scatter_tensor_async(one, all, {.op = ReduceOp::MAX});
    return group_.all_to_all_single_async(all, part(halves.at(half), size * each));
  }

  const ProcessGroup& group_;
  Random random_;
  bool waits_;
  // Gloo and several machines copy the results of some kinds at the end: who wants to read those must wait.
  bool has_one_memory_;
  at::Tensor buffer_;
  std::vector<WorkPtr> kept_{};
};

TEST(OneBuffer, EndsAsIfEachHadBeenWaitedFor) {
  const ProcessGroup world = lockstep::testing::world();
  const bool is_gloo = world.backend_name() != "lockstep";
  const int64_t first = env::get_int("LOCKSTEP_FUZZ_SEED").value_or(1);
  const int64_t programs = env::get_int("LOCKSTEP_FUZZ_PROGRAMS").value_or(is_gloo ? 10 : 30);
  for (int64_t seed = first; seed < first + programs; ++seed) {
    SCOPED_CASE("seed {}", seed);
    const at::Tensor expected = Program(world, static_cast<uint64_t>(seed), /*waits=*/true).run();
    CHECK_EQUAL(Program(world, static_cast<uint64_t>(seed), /*waits=*/false).run(), expected);
  }
}

}  // namespace
