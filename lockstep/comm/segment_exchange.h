// How ranks that inherited no segment (torchrun, mpirun, srun) come to share one.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>

#include "lockstep/base/fd.h"

namespace c10d {
class Store;
}

namespace lockstep {

struct LaunchEnvironment;

/// The node's first rank makes the segment and publishes where it is; the others open it and compare a random
/// number that only its memory holds. Throws CommError when they do not share memory. Blocks until the first
/// rank is there.
UniqueFd exchange_segment(c10d::Store& store, const LaunchEnvironment& launch);

}  // namespace lockstep
