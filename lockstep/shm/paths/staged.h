// The path of medium operations, and of reductions of up to kStagedReductionBytes in the segment: each rank
// copies what it sends into a staging buffer, and every rank reads all of them. One synchronization.
#pragma once

#include "lockstep/shm/paths/board.h"

namespace lockstep::shm::staged {

/// Copies what this rank sends into a staging buffer. There it takes part in the direct path too, where a
/// peer's buffer lies in its arena.
void offer(Board& board, Operation& operation);
bool advance(Board& board, Operation& operation);
void finish(const Board& board, const Operation& operation);
/// A rank that has arrived has given all it has to give, and may end.
inline bool needs() { return false; }

}  // namespace lockstep::shm::staged
