// Numbers of a training loop that a checkpoint keeps.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/state/state_dict.h"

namespace lockstep {

/// Integers by name, 0 at first:
///
///     lockstep::Counters counters;
///     for (int64_t& epoch = counters["epoch"]; epoch < 3; ++epoch) ...
///
/// References stay valid, also when a state is loaded. One thread at a time.
class Counters {
 public:
  /// The counter of this name, which is made where there is none.
  int64_t& operator[](const std::string& name) { return values_[name]; }
  /// All counters as scalars.
  StateDict state_dict() const;
  /// Those that `state` lacks become 0. Throws ValueError for a value that is no integer.
  void load_state_dict(const StateDict& state);

 private:
  std::map<std::string, int64_t> values_{};
};

}  // namespace lockstep
