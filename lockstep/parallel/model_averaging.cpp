#include "lockstep/parallel/model_averaging.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/hooks/default_hooks.h"

namespace lockstep {

PeriodicModelAverager::PeriodicModelAverager(int64_t period, int64_t warmup_steps,
                                             std::optional<ProcessGroup> process_group)
    : period_(period), warmup_steps_(warmup_steps), group_(group_or_world(process_group)) {
  if (period < 1) {
    throw ValueError("PeriodicModelAverager: period must be at least 1, not " + std::to_string(period));
  }
  if (warmup_steps < 0) {
    throw ValueError("PeriodicModelAverager: warmup_steps must be at least 0, not " +
                     std::to_string(warmup_steps));
  }
}

void PeriodicModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  const int64_t now = step++;
  if (now < warmup_steps_ || (now - warmup_steps_) % period_ != 0 || !group_->is_member()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> averaged, flat;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    averaged.push_back(parameter);
    flat.push_back(parameter.reshape({-1}));
  }
  if (flat.empty()) return;
  const at::Tensor all = at::cat(flat);
  group_->all_reduce(all, {.op = ReduceOp::AVG});
  int64_t at = 0;
  for (const at::Tensor& parameter : averaged) {
    parameter.copy_(all.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
}

void PeriodicModelAverager::average_parameters(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  average_parameters(parameters);
}

void PostLocalSGDOptimizer::step() {
  optimizer_->step();
  averager_.average_parameters(*optimizer_);
}

}  // namespace lockstep
