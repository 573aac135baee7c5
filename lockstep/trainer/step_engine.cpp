#include "lockstep/trainer/step_engine.h"

#include "lockstep/base/error.h"
#include "lockstep/parallel/sync_module_states.h"

namespace lockstep::detail {

std::optional<DistributedDataParallelOptions> ddp_options(const TrainingArguments& arguments,
                                                          const ProcessGroup& group, bool trains) {
  if (!trains || (group.size() == 1 && arguments.deterministic_world == 0)) return std::nullopt;
  return DistributedDataParallelOptions{.process_group = group,
                                        .bucket_cap_mb = arguments.ddp_bucket_cap_mb,
                                        .broadcast_buffers = arguments.ddp_broadcast_buffers,
                                        .find_unused_parameters = arguments.ddp_find_unused_parameters};
}

int data_ranks(StepEngine& engine, const ProcessGroup& group) {
  const auto* const logical = engine.logical_ranks();
  return logical != nullptr ? logical->size() : group.size();
}

std::vector<int> own_data_ranks(StepEngine& engine, const ProcessGroup& group) {
  const auto* const logical = engine.logical_ranks();
  return logical != nullptr ? logical->own() : std::vector<int>{group.rank()};
}

void all_reduce_data_ranks(StepEngine& engine, const ProcessGroup& group, const at::Tensor& tensor) {
  if (const auto* const logical = engine.logical_ranks(); logical != nullptr) {
    logical->all_reduce(tensor);
  } else {
    group.all_reduce(tensor, {.wire_dtype = WireDtype::EXACT});  // a loss, a count
  }
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

void check_trainer(const TrainingArguments& arguments, bool has_compute_loss, bool has_forward,
                   const Dataset& train_dataset, const Dataset& eval_dataset) {
  if (!has_compute_loss && !has_forward) {
    throw ValueError("the Trainer has neither compute_loss nor forward; give one");
  }
  if (has_compute_loss && arguments.label_smoothing_factor > 0) {
    throw ValueError(
        "label_smoothing_factor has no effect on a compute_loss; give it to cross_entropy_sum() there");
  }
  const bool evaluates = arguments.eval_strategy != IntervalStrategy::NO ||
                         arguments.val_check_interval > 0 || arguments.eval_on_start;
  if (evaluates && eval_dataset.size == 0) {
    throw ValueError("eval_strategy is set but there is no validation set; give one, or set it to no");
  }
  for (const auto* dataset : {&train_dataset, &eval_dataset}) {
    if (dataset->size > 0 && !dataset->collate)
      throw ValueError("a dataset has samples but no collate function");
  }
}

}  // namespace lockstep::detail
