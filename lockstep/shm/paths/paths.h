// Which path an operation takes, and from there on that path's part of it. The only place that asks for the
// path; each has the same functions in a file of its own.
#pragma once

#include "lockstep/shm/arena.h"
#include "lockstep/shm/paths/board.h"

namespace lockstep::shm::paths {

/// Where the others will find what this rank sends, whose arena `arena` is.
Memory memory_for(const Operation& operation, const Arena& arena);
/// From what all ranks announced, so that all come to the same.
Path path_of(const Board& board, const Operation& operation);

/// Puts what this rank sends where `operation.what.memory` says. Its post follows.
void offer(Board& board, Operation& operation);
/// Does what can be done now, once all ranks have posted; `help`: also what other ranks could do themselves.
/// True when this rank has its result and its bytes have been read.
bool advance(Board& board, Operation& operation, bool help);
/// Leaves the result where it belongs, and prepares for the next operation on the same path: that one writes
/// into lines that the peers have read, which are fetched for writing while there is time (0.3 us where one is
/// missing).
void finish(const Board& board, const Operation& operation);
/// Can the operation not end here without `member`, which has posted, doing something more?
bool needs(const Board& board, const Operation& operation, int member);

}  // namespace lockstep::shm::paths
