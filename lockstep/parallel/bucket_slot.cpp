#include "lockstep/parallel/bucket_slot.h"

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include "lockstep/parallel/bucket_slot_hook.h"

namespace lockstep {

at::Tensor bucket_slot(const torch::autograd::Edge& edge, at::ScalarType dtype) {
  if (!edge.is_valid()) return {};
  for (const auto& hook : edge.function->post_hooks()) {
    const auto* ours = dynamic_cast<const BucketSlotHook*>(hook.get());
    if (ours == nullptr) continue;
    at::Tensor slot = ours->slot(dtype);
    if (slot.defined()) return slot;
  }
  return {};
}

}  // namespace lockstep
