#include "lockstep/step/check_replicas.h"

#include <set>

#include <fmt/format.h>

#include "lockstep/comm/init.h"
#include "lockstep/parallel/ddp/mixed_precision.h"
#include "lockstep/step/compare_replicas.h"
#include "lockstep/step/replica_items.h"

namespace lockstep {
namespace {

/// Throws ValueError for a name to ignore that the module does not have.
std::set<std::string> ignored_names(const torch::nn::Module& module, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (module.named_parameters().contains(name) || module.named_buffers().contains(name)) continue;
    throw ValueError(
        fmt::format("check_replicas: parameters_and_buffers_to_ignore names \"{}\", but the module has no "
                    "parameter or buffer of that name",
                    name));
  }
  return {names.begin(), names.end()};
}

/// Are the buffers each rank's own from the start, as in Python?
bool has_own_buffers(const DistributedDataParallelOptions& options) {
  return !options.forward_sync_buffers && options.broadcast_buffers == false;
}

}  // namespace

void check_replicas(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                    CheckReplicasOptions options) {
  check_replicas(module, {&optimizer}, std::move(options));
}

void check_replicas(const torch::nn::Module& module,
                    const std::vector<const torch::optim::Optimizer*>& optimizers,
                    CheckReplicasOptions options) {
  const ProcessGroup group = options.process_group ? *options.process_group : default_world();
  const auto list = [&] {
    detail::ReplicaItems items;
    items.add_module(module, ignored_names(module, options.parameters_and_buffers_to_ignore),
                     options.compare_buffers.value_or(true));
    for (const auto* optimizer : optimizers) items.add_optimizer(*optimizer);
    return items;
  };
  detail::compare_replicas(group, list, options.place);
}

void detail::check_wrapper(const ReplicaOfWrapper& wrapper, const ConstOptimizers& optimizers,
                           CheckReplicasOptions options) {
  const DdpCore& core = wrapper.core;
  const ProcessGroup group = options.process_group ? *options.process_group : core.group();
  const auto list = [&] {
    ReplicaItems items;
    auto ignored = ignored_names(core.module(), options.parameters_and_buffers_to_ignore);
    const auto& ignored_by_wrapper = core.options().parameters_and_buffers_to_ignore;
    ignored.insert(ignored_by_wrapper.begin(), ignored_by_wrapper.end());
    verify_full_precision("check_replicas", core.tensors().parameters);
    items.add_module(core.module(), ignored,
                     options.compare_buffers.value_or(!has_own_buffers(core.options())));
    for (const auto* optimizer : optimizers) items.add_optimizer(*optimizer);
    return items;
  };
  compare_replicas(group, list, options.place);
}

}  // namespace lockstep
