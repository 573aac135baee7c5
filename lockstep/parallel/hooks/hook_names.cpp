#include <utility>

#include "lockstep/parallel/hooks/comm_hook.h"
#include "lockstep/parallel/hooks/debugging_hooks.h"
#include "lockstep/parallel/hooks/default_hooks.h"
#include "lockstep/parallel/hooks/horovod_hooks.h"
#include "lockstep/parallel/hooks/post_local_sgd_hook.h"
#include "lockstep/parallel/hooks/power_sgd_hook.h"
#include "lockstep/parallel/hooks/quantization_hooks.h"

namespace lockstep {
namespace {

template <class Hook>
auto plain(Hook* hook) {
  return reinterpret_cast<void (*)()>(hook);
}

}  // namespace

std::string detail::name_of_function(void (*hook)()) {
  const std::pair<void (*)(), const char*> shipped[] = {
      {plain(allreduce_hook), "allreduce_hook"},
      {plain(fp16_compress_hook), "fp16_compress_hook"},
      {plain(bf16_compress_hook), "bf16_compress_hook"},
      {plain(quantization_pertensor_hook), "quantization_pertensor_hook"},
      {plain(quantization_perchannel_hook), "quantization_perchannel_hook"},
      {plain(powerSGD_hook), "powerSGD_hook"},
      {plain(batched_powerSGD_hook), "batched_powerSGD_hook"},
      {plain(post_localSGD_hook), "post_localSGD_hook"},
      {plain(adasum_hook), "adasum_hook"},
      {plain(predivide_hook), "predivide_hook"},
      {plain(noop_hook<std::nullopt_t>), "noop_hook"}};
  for (const auto& [function, name] : shipped) {
    if (function == hook) return name;
  }
  return "function";
}

}  // namespace lockstep
