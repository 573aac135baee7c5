// How a loader finds the place of the sampler that it was given.
#pragma once

#include <concepts>

namespace lockstep {
class DistributedSampler;
class TrainSampler;

namespace detail {
class EpochPosition;

/// Null for a sampler of the user's own, whose passes a loader cannot tell from each other.
struct PositionOf {
  static const EpochPosition* of(const DistributedSampler& sampler);
  static const EpochPosition* of(const TrainSampler& sampler);
  template <class S>
  static const EpochPosition* find(const S& sampler) {
    if constexpr (std::derived_from<S, DistributedSampler> || std::derived_from<S, TrainSampler>) {
      return of(sampler);
    } else {
      return nullptr;
    }
  }
};

}  // namespace detail
}  // namespace lockstep
