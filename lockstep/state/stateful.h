// What can be saved and continued.
#pragma once

#include <concepts>

#include "lockstep/state/state_dict.h"

namespace lockstep {

/// Anything with a state as a value: `StateDict state_dict() const` and `load_state_dict(const StateDict&)`,
/// after which it goes on as the one that was saved would have. There is no base class.
template <class T>
concept Stateful = requires(const T& saved, T& loaded, const StateDict& state) {
  { saved.state_dict() } -> std::same_as<StateDict>;
  loaded.load_state_dict(state);
};

}  // namespace lockstep
