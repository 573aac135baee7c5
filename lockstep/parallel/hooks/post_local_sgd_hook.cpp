#include "lockstep/parallel/hooks/post_local_sgd_hook.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/comm/init.h"
#include "lockstep/comm/joining/machines.h"
#include "lockstep/parallel/hooks/default_hooks.h"

namespace lockstep {

PostLocalSGDState::PostLocalSGDState(std::optional<ProcessGroup> group, std::optional<ProcessGroup> part,
                                     int64_t start, bool allreduce)
    : process_group(std::move(group)),
      subgroup(std::move(part)),
      start_localSGD_iter(start),
      post_local_gradient_allreduce(allreduce) {
  if (!subgroup && post_local_gradient_allreduce) {
    const World& world = default_world();
    subgroup = world.split_group(ranks_by_machine(world.size()));
  }
}

Future post_localSGD_hook(const std::shared_ptr<PostLocalSGDState>& state, GradBucket& bucket) {
  if (state->iter < state->start_localSGD_iter) {
    if (bucket.is_last() && ++state->iter == state->start_localSGD_iter) {
      log::info(fmt::format("local SGD starts after {} iterations", int64_t{state->iter}));
    }
    return allreduce_hook(state->process_group, bucket);
  }
  if (!state->post_local_gradient_allreduce) return bucket.buffer();
  return allreduce_hook(state->subgroup, bucket);
}

}  // namespace lockstep
