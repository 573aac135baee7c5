// The path of small operations: the bytes lie in the posts, so that whoever sees all posts has all he needs.
// One synchronization; nobody waits for anybody's confirmation.
#pragma once

#include "lockstep/shm/paths/board.h"

namespace lockstep::shm::inlined {

/// Puts what this rank sends into its post, which is complete only when the post is. What follows in the post
/// must be stored at once: a peer that already polls the line would take it away in between.
void offer(const Board& board, const Operation& operation);
bool advance(Board& board, Operation& operation);
void finish(const Board& board, const Operation& operation);
/// A rank that has arrived has given all it has to give, and may end.
inline bool needs() { return false; }

}  // namespace lockstep::shm::inlined
