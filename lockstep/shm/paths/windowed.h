// The path of buffers outside the segment: their bytes pass through a window in each rank's arena, block by
// block, so that a large message needs little shared memory and what is copied is still in the cache when it
// is used.
//
// A rank fills blocks of its window; once every sender has filled a block, every rank takes its part of it;
// once all have, what a reduction left in the window is copied out and the place is free for another block.
#pragma once

#include "lockstep/shm/paths/board.h"

namespace lockstep::shm::windowed {

/// What this rank sends will pass through `operation.window`.
void offer(const Board& board, Operation& operation);
bool advance(Board& board, Operation& operation);
void finish(const Board& board, const Operation& operation);
bool needs(const Board& board, const Operation& operation, int member);

}  // namespace lockstep::shm::windowed
