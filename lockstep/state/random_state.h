// The default generator of random numbers as something to save.
#pragma once

#include "lockstep/state/state_dict.h"

namespace lockstep {

/// The state of LibTorch's default CPU generator, from which dropout and at::rand() draw (at::manual_seed() sets
/// it). There is one a process: on several ranks each saves its own.
///
///     lockstep::RandomState random;
///     checkpoint::save(dir, {{"model", model}, {"random", random, checkpoint::SavedBy::each_rank}});
class RandomState {
 public:
  /// The generator's state, as one tensor. Thread-safe.
  StateDict state_dict() const;
  /// Throws ValueError for the state of another kind of generator.
  void load_state_dict(const StateDict& state);
};

}  // namespace lockstep
