#include "lockstep/state/random_state.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include <mutex>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

const std::string name = "cpu_generator";

at::Generator generator() { return at::globalContext().defaultGenerator(at::kCPU); }

}  // namespace

StateDict RandomState::state_dict() const {
  at::Generator cpu = generator();
  const std::lock_guard lock(cpu.mutex());
  return {{{name, cpu.get_state()}}, {}};
}

void RandomState::load_state_dict(const StateDict& state) {
  at::Generator cpu = generator();
  const std::lock_guard lock(cpu.mutex());
  const auto found = state.tensors.find(name);
  if (found == state.tensors.end() || found->second.scalar_type() != at::kByte ||
      found->second.numel() != cpu.get_state().numel()) {
    throw ValueError(fmt::format(
        "RandomState::load_state_dict: the state has no \"{}\" as this version of LibTorch saves it; "
        "give what state_dict() returned",
        name));
  }
  cpu.set_state(found->second.clone());
}

}  // namespace lockstep
