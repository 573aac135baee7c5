// Post-local SGD (Lin et al., arXiv 1808.07217): gradients of all ranks at first, then those of a subgroup.
#pragma once

#include <memory>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/step_value.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace lockstep {

/// Names and meanings are those of Python's PostLocalSGDState.
struct PostLocalSGDState {
  /// Without `process_group`: all ranks. Without `subgroup`: the ranks of this machine, a group that is made
  /// here (blocks until all ranks of the job are there), where it will be used.
  PostLocalSGDState(std::optional<ProcessGroup> process_group, std::optional<ProcessGroup> subgroup,
                    int64_t start_localSGD_iter, bool post_local_gradient_allreduce = true);

  std::optional<ProcessGroup> process_group;  ///< averages before start_localSGD_iter
  std::optional<ProcessGroup> subgroup;       ///< averages from then on
  int64_t start_localSGD_iter;                ///< backward passes that process_group averages
  /// Whether gradients are averaged in the subgroup from start_localSGD_iter on; otherwise they stay local.
  bool post_local_gradient_allreduce;
  /// Backward passes so far, up to start_localSGD_iter; all that is to be saved. A failed step counts none.
  detail::StepValue<int64_t> iter{0};
};

/// To be combined with PeriodicModelAverager, whose warmup_steps is start_localSGD_iter.
Future post_localSGD_hook(const std::shared_ptr<PostLocalSGDState>& state, GradBucket& bucket);

}  // namespace lockstep
