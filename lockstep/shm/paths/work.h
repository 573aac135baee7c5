// What a rank does for an operation, whatever its path: copying and reducing.
#pragma once

#include <cstddef>
#include <utility>

#include "lockstep/shm/paths/board.h"
#include "lockstep/shm/paths/operation.h"
#include "lockstep/shm/paths/ranges.h"

namespace lockstep::shm {

/// The part of an operation that no other rank can take over: copying into memory of one's own, or reducing
/// there. All of it, from wherever the ranks offer their bytes.
void execute_alone(Board& board, Operation& operation);

/// The copies that this rank makes, of which one that is told late is asked only now.
std::pair<const Copy*, size_t> copies_of(Board& board, Operation& operation);

/// What a reduce_scatter leaves at this rank, as far as it lies `within` a part of what the ranks send.
void reduce_own_parts(const Board& board, const Operation& operation, Range within);

/// Reduces a part of everybody's buffer into everybody's, or the root's. `own`: this rank's part.
void reduce_range(const Board& board, const Operation& operation, Range range, std::byte* own);

}  // namespace lockstep::shm
