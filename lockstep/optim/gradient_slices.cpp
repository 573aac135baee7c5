#include "lockstep/optim/gradient_slices.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/parts.h"
#include "lockstep/parallel/hooks/default_hooks.h"

namespace lockstep::detail {

void note_zeroed_gradients(GradientSlices& slices) {
  if (next_state(slices.state, SliceEvent::zeroed) == slices.state)
    return;  // without a look at the gradients
  const bool holds_any =
      std::any_of(slices.parameters.begin(), slices.parameters.end(), [](const at::Tensor& parameter) {
        const at::Tensor& gradient = parameter.grad();
        return gradient.defined() && gradient.any().item<bool>();
      });
  if (!holds_any) slices.take(SliceEvent::zeroed);
}

namespace {

/// Averages parts of a bucket in place, with the bits of average_bucket().
Future average_parts(const GradBucket& bucket, std::vector<TensorPart> parts) {
  const ProcessGroup& group = bucket.process_group();
  const at::Tensor& buffer = bucket.buffer();
  const int divisor = bucket.divisor();
  if (divisor == group.size())
    return {reduce_parts_async(group, buffer, parts, {.op = ReduceOp::AVG}), buffer};
  const at::Tensor wide = widen_for_sum(buffer);
  const auto work = reduce_parts_async(group, wide, parts, {.op = ReduceOp::SUM});
  return Future(work, wide).then([buffer, divisor, parts = std::move(parts)](const at::Tensor& sums) {
    for (const TensorPart& part : parts) {
      const at::Tensor average = sums.narrow(0, part.first, part.count).div_(divisor);
      if (!sums.is_same(buffer)) buffer.narrow(0, part.first, part.count).copy_(average);
    }
    return buffer;
  });
}

}  // namespace

// Gradients lie one behind the other in the bucket, and so do a parameter's elements in its gradient, in the order of
// its memory.
Future reduce_own_slices(std::shared_ptr<GradientSlices>& slices, GradBucket& bucket) {
  if (slices->state == SliceState::orphaned) {
    return average_bucket(bucket, bucket.buffer());
  }
  if (bucket.index() == 0) {
    if (refuses_pass(slices->state)) {
      throw Error(
          "FusedZeroRedundancyOptimizer: a second synchronized backward pass onto gradients of the first: call "
          "zero_grad() in between, and accumulate under no_sync() in all passes but the last");
    }
    slices->take(SliceEvent::pass_begins);
  }
  std::vector<TensorPart> parts;
  int64_t offset = 0;
  for (const at::Tensor& parameter : bucket.parameters()) {
    const auto range = slices->own.find(parameter.unsafeGetTensorImpl());
    if (range == slices->own.end()) {
      throw Error(
          "FusedZeroRedundancyOptimizer: the module has a parameter that was freed after this optimizer was made; "
          "add_param_group() takes it in");
    }
    const auto [begin, end] = range->second;
    if (begin < end) parts.push_back({offset + begin, end - begin});
    offset += parameter.numel();
  }
  if (bucket.is_last()) slices->take(SliceEvent::pass_ends);
  return average_parts(bucket, std::move(parts));
}

}  // namespace lockstep::detail
