// The shipped communication hooks by name, as in Python's torch.distributed.algorithms.ddp_comm_hooks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/parallel/hooks/comm_hook.h"
#include "lockstep/parallel/hooks/power_sgd_hook.h"

namespace lockstep {

/// The shipped communication hooks, with Python's names; ddp_comm_hook_function() has the function of each.
enum class DDPCommHookType : uint8_t {
  ALLREDUCE,
  FP16_COMPRESS,
  BF16_COMPRESS,
  QUANTIZE_PER_TENSOR,
  QUANTIZE_PER_CHANNEL,
  POWER_SGD,
  POWER_SGD_RANK2,
  BATCHED_POWER_SGD,
  BATCHED_POWER_SGD_RANK2,
  NOOP
};

/// From its name in small letters: "allreduce", "power_sgd_rank2". Throws ValueError listing the names.
DDPCommHookType ddp_comm_hook_type(const std::string& name);

/// The hook over `group` (default: all ranks). `power_sgd`: of the PowerSGD hooks' state, but for the rank,
/// which their names give.
CommHook ddp_comm_hook(DDPCommHookType type, const std::optional<ProcessGroup>& group = std::nullopt,
                       PowerSGDOptions power_sgd = {});

/// Its function: "powerSGD_hook".
const char* ddp_comm_hook_function(DDPCommHookType type);

/// Registers it with `ddp`, a DistributedDataParallel.
template <class DDP>
void register_ddp_comm_hook(DDPCommHookType type, DDP& ddp,
                            const std::optional<ProcessGroup>& group = std::nullopt,
                            PowerSGDOptions power_sgd = {}) {
  ddp.register_comm_hook(
      ddp_comm_hook(type, group, power_sgd),
      [](const CommHook& hook, GradBucket& bucket) { return hook(bucket); }, ddp_comm_hook_function(type));
}

}  // namespace lockstep
