// Small types shared by the collectives' interface.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

#include "lockstep/base/reduce_op.h"

namespace lockstep {

/// The largest tag that a message of the program's own may have: the next is for all-reduces over messages.
inline constexpr int kMostTag = std::numeric_limits<int>::max() - 1;

/// How an all-reduce moves the bytes. DIRECT is the backend's own; the others go by messages between two
/// ranks, on any backend (comm/algorithms/all_reduce.h). AUTO takes what was fastest when it was measured.
enum class AllReduceAlgorithm : uint8_t {
  AUTO,
  DIRECT,
  REDUCE_BROADCAST,
  ALL_TO_ALL,
  RING,
  TREE,
  HALVING_DOUBLING,
  HIERARCHICAL
};

/// How the sums of an all-reduce travel from machine to machine, on the backend "lockstep". Inside a machine nothing changes.
enum class WireDtype : uint8_t {
  EXACT,    ///< with all their bits
  BFLOAT16  ///< rounded to bfloat16: half the bytes of float32 (docs/howto/slow_networks.md says how accurate)
};

/// A part of a contiguous tensor: elements [first, first + count).
struct TensorPart {
  int64_t first, count;
};

/// Deadline of an operation unless its options say otherwise: torch.distributed's 30 minutes.
inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(30);
/// What a longer one, such as milliseconds::max(), is taken for: a deadline must be a point in time.
inline constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 10);

}  // namespace lockstep
