#include "lockstep/parallel/sync_module_states.h"

#include <c10/core/GradMode.h>

#include "lockstep/comm/init.h"
#include "lockstep/parallel/ddp/module_check.h"
#include "lockstep/parallel/parameters.h"

namespace lockstep {

void sync_module_states(const torch::nn::Module& module, SyncModuleStatesOptions options) {
  constexpr const char* kWho = "sync_module_states";
  const at::NoGradGuard no_grad;
  const ProcessGroup group = options.process_group ? *options.process_group : default_world();
  std::string description;
  const auto named = detail::named_parameters_once(module);  // so ranks that tie other tensors differ here
  for (const auto& [name, parameter] : named) description += describe_parameter(name, parameter);
  for (const auto& item : module.named_buffers()) description += describe_buffer(item.key(), item.value());
  verify_same_on_all_ranks(group, kWho, description);
  for (const auto& item : module.named_parameters())
    verify_writable(kWho, "parameter " + item.key(), item.value());
  for (const auto& item : module.named_buffers()) verify_writable(kWho, "buffer " + item.key(), item.value());
  for (const auto& [name, parameter] : named) group.broadcast(parameter, {.src = options.src});
  for (const at::Tensor& buffer : module.buffers()) group.broadcast(buffer, {.src = options.src});
}

}  // namespace lockstep
