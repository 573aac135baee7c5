#include "lockstep/trainer/step_engine.h"

#include "lockstep/base/error.h"
#include "lockstep/parallel/sync_module_states.h"

namespace lockstep::detail {

std::optional<DistributedDataParallelOptions> ddp_options(const TrainingArguments& arguments,
                                                          const ProcessGroup& group, bool trains) {
  if (group.size() == 1 || !trains) return std::nullopt;
  return DistributedDataParallelOptions{.process_group = group,
                                        .bucket_cap_mb = arguments.ddp_bucket_cap_mb,
                                        .broadcast_buffers = arguments.ddp_broadcast_buffers,
                                        .find_unused_parameters = arguments.ddp_find_unused_parameters};
}

at::Device device_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front().device();
}

std::string label_name(const Batch& batch) {
  for (const char* name : {"labels", "label"}) {
    if (batch.contains(name)) return name;
  }
  return {};
}

Loss default_loss(const at::Tensor& outputs, const Batch& batch, double label_smoothing) {
  const std::string name = label_name(batch);
  if (name.empty())
    throw ValueError("the batch has no labels; give compute_loss, or a tensor \"labels\" or \"label\"");
  return cross_entropy_sum(outputs, batch[name], {.label_smoothing = label_smoothing});
}

}  // namespace lockstep::detail
