#include "lockstep/comm/stop_requested.h"

#include <ATen/ops/tensor.h>

namespace lockstep {

int stop_requested(const ProcessGroup& group) {
  static const StopSignals signals;
  const at::Tensor greatest = at::tensor({static_cast<int64_t>(stop_signal())}, at::kLong);
  group.all_reduce(greatest, {.op = ReduceOp::MAX});
  return static_cast<int>(greatest.item<int64_t>());
}

}  // namespace lockstep
