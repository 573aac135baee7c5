// Small types shared by the collectives' interface.
#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep {

/// How a reduction combines the ranks' elements. AVG divides once, after the sum (floating-point dtypes
/// only).
enum class ReduceOp : uint8_t { SUM, AVG, MIN, MAX };

/// Deadline of an operation unless its options say otherwise: torch.distributed's 30 minutes.
inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(30);

}  // namespace lockstep
