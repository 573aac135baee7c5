// The path of large operations on memory of the segment: every rank reads its peers' bytes where they lie.
//
// All-reduce and reduce store their results there too. Each rank owns a slice, reduces it from everybody's
// buffer and stores it into everybody's buffer, in chunks that idle ranks take over. In all else a rank copies
// or reduces what it wants and then says that it no longer reads.
#pragma once

#include "lockstep/shm/paths/board.h"

namespace lockstep::shm::direct {

/// What this rank sends lies at `place`, in the segment.
void offer(const Board& board, Operation& operation, const std::byte* place);
/// `help`: also take over other ranks' chunks.
bool advance(Board& board, Operation& operation, bool help);
void finish(const Board& board, const Operation& operation);
/// Where slices are shared, any rank may have taken over an unfinished chunk.
bool needs(const Board& board, const Operation& operation, int member);

}  // namespace lockstep::shm::direct
