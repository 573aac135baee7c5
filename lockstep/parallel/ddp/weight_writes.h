// Whether the weights of a wrapper have been written in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/parallel/ddp/gradient_buckets.h"
#include "lockstep/parallel/gradient_places.h"

namespace lockstep::detail {

/// One thread at a time.
class WeightWrites {
 public:
  /// `buckets`: whose parameters they are; it may be made later, and must live as long.
  explicit WeightWrites(const GradientBuckets& buckets) : buckets_(buckets) {}
  /// What holds now is not written.
  void begin_step() { places_.clear(); }
  /// An averaging pass has ended. LibTorch's SGD writes through data(), which no version counts. Without momentum it writes only what
  /// has a gradient: in an embedding perhaps nothing that probe() looks at otherwise.
  void note_gradients();
  /// See StepMember::probe_weights().
  uint64_t probe() const;

 private:
  const GradientBuckets& buckets_;
  std::vector<GradientPlaces> places_{};  // by parameter, since a pass of this step
};

}  // namespace lockstep::detail
