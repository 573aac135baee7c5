// What Horovod offers beside averaging, as communication hooks.
#pragma once

#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace lockstep {

/// Adasum (Maleki et al., arXiv 2006.02924): gradients add up where they are orthogonal and average where
/// they are parallel, so that the learning rate needs no scaling with the number of ranks. Gradient by
/// gradient, in pairs of ranks at distance 1, 2, 4, ...; dot products in fp64. Throws ValueError unless the
/// number of ranks is a power of two.
Future adasum_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket);

/// predivide_hook takes it as its state.
struct PredivideState {
  std::optional<ProcessGroup> process_group{};  ///< default: DistributedDataParallel's
  /// Gradients are divided by it before the sum, and by size / gradient_predivide_factor after it.
  double gradient_predivide_factor = 1;
};

/// Averages in two divisions: against overflow in half precision, under fp16_compress_wrapper for one. Throws
/// ValueError for a factor that is not positive.
Future predivide_hook(const PredivideState& state, GradBucket& bucket);

}  // namespace lockstep
