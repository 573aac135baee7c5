#include "lockstep/parallel/hooks/horovod_hooks.h"

#include <ATen/ops/dot.h>
#include <ATen/ops/empty_like.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/hooks/default_hooks.h"

namespace lockstep {
namespace {

/// Adds `b` to `a` with Adasum's weights. Both 1-d.
void add_adaptively(const at::Tensor& a, const at::Tensor& b) {
  // A squared norm below this counts as zero.
  const double least = std::sqrt(std::numeric_limits<double>::min());
  const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
  const auto product = at::dot(wide_a, wide_b).item<double>();
  const auto square_a = at::dot(wide_a, wide_a).item<double>();
  const auto square_b = at::dot(wide_b, wide_b).item<double>();
  a.mul_(square_a >= least ? 1 - product / (2 * square_a) : 1.0);
  a.add_(b, square_b >= least ? 1 - product / (2 * square_b) : 1.0);
}

/// Where each gradient of a bucket lies.
using Places = std::vector<std::pair<int64_t, int64_t>>;

/// `own`: what the ranks below `distance` of this rank's block have made together.
Future combine(const ProcessGroup& group, const Places& places, const at::Tensor& own, int distance) {
  if (distance >= group.size()) return own;
  const int partner = group.rank() ^ distance;
  const at::Tensor theirs = at::empty_like(own);
  const auto exchange = all_of(group.batch_isend_irecv(
      {{P2POp::Kind::isend, own, partner, 0}, {P2POp::Kind::irecv, theirs, partner, 0}}));
  return Future(exchange, own).then([=](const at::Tensor& mine) -> Future {
    // Both partners compute the same sum, in the same order.
    const at::Tensor& low = group.rank() < partner ? mine : theirs;
    const at::Tensor& high = group.rank() < partner ? theirs : mine;
    for (const auto& [offset, count] : places) {
      add_adaptively(low.narrow(0, offset, count), high.narrow(0, offset, count));
    }
    return combine(group, places, low, distance * 2);
  });
}

}  // namespace

Future adasum_hook(const std::optional<ProcessGroup>& given, GradBucket& bucket) {
  detail::check_real("adasum_hook", bucket);
  const ProcessGroup group = hook_group(given, bucket);
  if ((group.size() & (group.size() - 1)) != 0) {
    throw ValueError(
        fmt::format("adasum_hook: the number of ranks must be a power of two, not {}", group.size()));
  }
  Places places;
  for (const at::Tensor& gradient : bucket.gradients()) {
    places.emplace_back(gradient.storage_offset() - bucket.buffer().storage_offset(), gradient.numel());
  }
  return combine(group, places, bucket.buffer(), 1);
}

Future predivide_hook(const PredivideState& state, GradBucket& bucket) {
  const double factor = state.gradient_predivide_factor;
  if (!(factor > 0)) {
    throw ValueError(
        fmt::format("predivide_hook: gradient_predivide_factor must be greater than 0, not {}", factor));
  }
  const ProcessGroup group = hook_group(state.process_group, bucket);
  const at::Tensor buffer = bucket.buffer().div_(factor);
  return Future(group.all_reduce_async(buffer), buffer).then([=](const at::Tensor& sum) {
    return sum.mul_(factor / group.size());
  });
}

}  // namespace lockstep
