// Which operations of a rank may not be under way together.
#pragma once

#include "lockstep/shm/paths/operation.h"

namespace lockstep::shm {

/// Must `later` begin only when `earlier`, which was posted, has ended on this rank? So it must if one of them writes what the
/// other one reads or writes, unless they belong together.
bool must_follow(const Operation& later, const Operation& earlier);

}  // namespace lockstep::shm
