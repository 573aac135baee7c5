// Buckets whose averaging is a communication hook's task.
#include <c10/core/GradMode.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/reducer/reducer.h"

namespace lockstep {

void Reducer::register_comm_hook(CommHook hook) {
  if (comm_hook_) {
    throw Error(
        "DistributedDataParallel: register_comm_hook can be called once; a hook is registered already");
  }
  if (pass_.state == PassState::open || statistics_.passes > 0) {
    throw Error("DistributedDataParallel: register_comm_hook must be called before the first backward pass");
  }
  if (logical_ranks_ > 0) {
    throw Error(
        "DistributedDataParallel: register_comm_hook: gradients are added in the order of the logical ranks, which a hook "
        "would change");
  }
  comm_hook_ = std::move(hook);
  lay_out(make_plan(known_order()));  // buffer() has no gaps
}

void Reducer::launch_hook(size_t index) {
  const at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[index];
  const BucketPlan::Bucket& planned = plan_.buckets[index];
  if (!planned.parameters.empty()) {
    const auto element = static_cast<int64_t>(bucket.flat.element_size());
    std::vector<int64_t> offsets;
    std::vector<at::Tensor> parameters;
    std::vector<std::string_view> names;
    for (size_t i = 0; i < planned.parameters.size(); ++i) {
      offsets.push_back(static_cast<int64_t>(planned.offsets[i]) / element);
      parameters.push_back(parameters_[planned.parameters[i]].tensor);
      names.push_back(parameters_[planned.parameters[i]].name);
    }
    const at::Tensor gradients = bucket.flat.narrow(0, 0, static_cast<int64_t>(planned.bytes) / element);
    bucket.grad_bucket =
        std::make_unique<GradBucket>(group_, index, buckets_.size(), gradients, std::move(offsets),
                                     std::move(parameters), std::move(names));
    bucket.future = std::make_unique<Future>(comm_hook_(*bucket.grad_bucket));
  }
  // Whatever the hook makes of the gradients, whether some are missing is known exactly.
  if (bucket.missing.defined()) all_reduce_missing(bucket);
}

/// Stage by stage, bucket by bucket: the operations of one bucket's hook go on while the next one computes,
/// and all ranks start them in the same order.
void Reducer::wait_for_hooks() {
  bool any = true;
  while (any) {
    any = false;
    for (Bucket& bucket : buckets_) {
      if (bucket.future && !bucket.future_is_complete) {
        bucket.future_is_complete = bucket.future->advance();
        any = any || !bucket.future_is_complete;
      }
    }
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    if (bucket.missing_work) bucket.missing_work->wait();
    if (bucket.future) {
      const at::Tensor value = bucket.future->wait();
      const int64_t count = bucket.flat.numel() - (bucket.missing.defined() && bucket.flat.is_cpu() ? 1 : 0);
      if (!value.defined() || value.numel() != count) {
        throw Error("DistributedDataParallel: the communication hook's result for bucket " +
                    std::to_string(b) + " has " + std::to_string(value.defined() ? value.numel() : 0) +
                    " elements; the bucket's gradients have " + std::to_string(count));
      }
      const at::Tensor gradients = bucket.flat.narrow(0, 0, count);
      if (value.const_data_ptr() != gradients.const_data_ptr()) gradients.copy_(value.reshape({-1}));
    }
    bucket.missing_work.reset();
    bucket.future.reset();
    bucket.grad_bucket.reset();
  }
}

}  // namespace lockstep
