#include "lockstep/state/counters.h"

namespace lockstep {

StateDict Counters::state_dict() const {
  StateDict state;
  for (const auto& [name, value] : values_) state.scalars[name] = value;
  return state;
}

void Counters::load_state_dict(const StateDict& state) {
  std::map<std::string, int64_t> loaded;
  for (const auto& [name, unused] : state.scalars) {
    loaded[name] = state.get<int64_t>("Counters::load_state_dict", name);
  }
  for (auto& [name, value] : values_) value = 0;
  for (const auto& [name, value] : loaded) values_[name] = value;
}

}  // namespace lockstep
