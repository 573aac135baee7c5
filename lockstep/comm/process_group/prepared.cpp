#include "lockstep/comm/process_group/prepared.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/memory_overlap.h"
#include "lockstep/comm/process_group/arguments.h"

namespace lockstep {
namespace {

/// It may have been given back since the operation began: storage().resize_(0).
void verify_storage(const at::Tensor& target) {
  if (!target.has_storage() || target.numel() == 0) return;
  const size_t needed = at::detail::computeStorageNbytes(target.sizes(), target.strides(),
                                                         static_cast<size_t>(target.element_size()),
                                                         static_cast<size_t>(target.storage_offset()));
  if (target.storage().nbytes() < needed)
    throw Error(
        "the memory of an output was given back before its operation had ended: wait for its Work before");
}

}  // namespace

Collective PreparedCollective::collective() const {
  Collective whole = call;
  whole.inputs = inputs;
  whole.outputs = outputs;
  if (!copies.empty()) whole.targets = result;
  whole.output_splits = output_splits;
  whole.input_splits = input_splits;
  return whole;
}

void copy_all(const TensorCopies& copies) {
  for (const auto& [target, result] : copies) {
    // A tensor of torch.inference_mode(), which may have ended.
    std::optional<c10::InferenceMode> inference;
    if (target.is_inference()) inference.emplace();
    verify_storage(target);
    target.copy_(result);
  }
}

void write_to(PreparedCollective& prepared, const char* what, std::vector<at::Tensor> targets,
              OutputUse use) {
  check_apart(what, targets);
  prepared.outputs.reserve(targets.size());
  for (const at::Tensor& target : targets) {
    if (!use.is_written_late && lies_plainly(target)) {
      prepared.outputs.push_back(target);
      continue;
    }
    prepared.outputs.push_back(!use.is_read           ? at::empty_like(target, at::MemoryFormat::Contiguous)
                               : lies_plainly(target) ? target.detach().clone()
                                                      : plain(target));
    prepared.copies.emplace_back(target.detach(), prepared.outputs.back());
  }
  prepared.result = std::move(targets);
}

}  // namespace lockstep
