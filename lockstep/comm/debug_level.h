// TORCH_DISTRIBUTED_DEBUG: how much is told and checked.
#pragma once

#include <cstdint>

namespace lockstep {

enum class DebugLevel : uint8_t {
  OFF,
  INFO,    ///< DistributedDataParallel tells what it decides and sees, on standard error
  DETAIL,  ///< and every collective is compared between the ranks before it runs
};

/// As TORCH_DISTRIBUTED_DEBUG says, in any case; OFF where it is unset. init() reads it, once. Throws
/// ValueError for another value.
DebugLevel debug_level();

}  // namespace lockstep
