#include "lockstep/parallel/hooks/ddp_comm_hooks.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/hooks/debugging_hooks.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/hooks/quantization_hooks.h"

namespace lockstep {
namespace {

/// By DDPCommHookType: its name and its function.
constexpr const char* kHookNames[][2] = {{"allreduce", "allreduce_hook"},
                                         {"fp16_compress", "fp16_compress_hook"},
                                         {"bf16_compress", "bf16_compress_hook"},
                                         {"quantize_per_tensor", "quantization_pertensor_hook"},
                                         {"quantize_per_channel", "quantization_perchannel_hook"},
                                         {"power_sgd", "powerSGD_hook"},
                                         {"power_sgd_rank2", "powerSGD_hook"},
                                         {"batched_power_sgd", "batched_powerSGD_hook"},
                                         {"batched_power_sgd_rank2", "batched_powerSGD_hook"},
                                         {"noop", "noop_hook"}};

template <class State, class Hook>
CommHook bind(State state, Hook hook) {
  return [state = std::move(state), hook](GradBucket& bucket) -> Future { return hook(state, bucket); };
}

template <class Hook>
CommHook bind_power_sgd(const std::optional<ProcessGroup>& group, PowerSGDOptions options, int64_t rank,
                        Hook hook) {
  options.matrix_approximation_rank = rank;
  return bind(std::make_shared<PowerSGDState>(group, options), hook);
}

}  // namespace

DDPCommHookType ddp_comm_hook_type(const std::string& name) {
  std::string all;
  for (size_t i = 0; i < std::size(kHookNames); ++i) {
    if (name == kHookNames[i][0]) return static_cast<DDPCommHookType>(i);
    all += (all.empty() ? "" : ", ") + std::string(kHookNames[i][0]);
  }
  throw ValueError(fmt::format("there is no communication hook \"{}\"; choose one of {}", name, all));
}

const char* ddp_comm_hook_function(DDPCommHookType type) { return kHookNames[static_cast<size_t>(type)][1]; }

CommHook ddp_comm_hook(DDPCommHookType type, const std::optional<ProcessGroup>& group,
                       PowerSGDOptions power_sgd) {
  switch (type) {
    case DDPCommHookType::ALLREDUCE:
      return bind(group, allreduce_hook);
    case DDPCommHookType::FP16_COMPRESS:
      return bind(group, fp16_compress_hook);
    case DDPCommHookType::BF16_COMPRESS:
      return bind(group, bf16_compress_hook);
    case DDPCommHookType::QUANTIZE_PER_TENSOR:
      return bind(group, quantization_pertensor_hook);
    case DDPCommHookType::QUANTIZE_PER_CHANNEL:
      return bind(group, quantization_perchannel_hook);
    case DDPCommHookType::POWER_SGD:
      return bind_power_sgd(group, power_sgd, 1, powerSGD_hook);
    case DDPCommHookType::POWER_SGD_RANK2:
      return bind_power_sgd(group, power_sgd, 2, powerSGD_hook);
    case DDPCommHookType::BATCHED_POWER_SGD:
      return bind_power_sgd(group, power_sgd, 1, batched_powerSGD_hook);
    case DDPCommHookType::BATCHED_POWER_SGD_RANK2:
      return bind_power_sgd(group, power_sgd, 2, batched_powerSGD_hook);
    case DDPCommHookType::NOOP:
      return bind(group, noop_hook<std::optional<ProcessGroup>>);
  }
  throw ValueError("ddp_comm_hook: unknown type");
}

}  // namespace lockstep
