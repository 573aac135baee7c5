#include "lockstep/comm/stop_requested.h"

#include <ATen/ops/tensor.h>

namespace lockstep {

int stop_requested(const ProcessGroup& group) {
  // Never destroyed: a request that comes while a rank that has saved is ending must not change its exit code.
  [[maybe_unused]] static const auto* const signals = new StopSignals;
  const at::Tensor greatest = at::tensor({static_cast<int64_t>(stop_signal())}, at::kLong);
  group.all_reduce(greatest, {.op = ReduceOp::MAX});
  return static_cast<int>(greatest.item<int64_t>());
}

}  // namespace lockstep
