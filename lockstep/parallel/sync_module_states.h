// One rank's parameters and buffers for all.
#pragma once

#include <torch/nn/module.h>

#include <optional>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// Options of sync_module_states().
struct SyncModuleStatesOptions {
  int src = 0;  ///< the rank whose values all get
  /// Default: the group of all ranks that lockstep::init() made.
  std::optional<ProcessGroup> process_group{};
};

/// Copies the parameters and buffers of one rank's module to all, as DistributedDataParallel does when it is
/// made. Called by all ranks; blocks. Throws Error naming the first parameter or buffer whose name, shape,
/// dtype, ties or requires_grad differ between ranks, and then copies none. ValueError, on all ranks, if one
/// has elements that share memory (as after expand()).
void sync_module_states(const torch::nn::Module& module, SyncModuleStatesOptions options = {});

}  // namespace lockstep
