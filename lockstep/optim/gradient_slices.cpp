#include "lockstep/optim/gradient_slices.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/comm/parts.h"

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

// Gradients lie one behind the other in the bucket, and so do a parameter's elements in its gradient, in the order of
// its memory.
Future reduce_own_slices(std::shared_ptr<GradientSlices>& slices, GradBucket& bucket) {
  if (slices->state == SliceState::orphaned) {
    return {bucket.process_group().all_reduce_async(bucket.buffer(), {.op = ReduceOp::AVG}), bucket.buffer()};
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
  return {reduce_parts_async(bucket.process_group(), bucket.buffer(), parts, {.op = ReduceOp::AVG}),
          bucket.buffer()};
}

}  // namespace lockstep::detail
