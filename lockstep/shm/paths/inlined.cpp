#include "lockstep/shm/paths/inlined.h"

#include <cstring>

#include "lockstep/shm/paths/work.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm::inlined {

void offer(const Board& board, const Operation& operation) {
  if (operation.what.sent == 0) return;
  Post& mine = board.post_of(operation.sequence, board.rank());
  std::memcpy(mine.payload(operation.what.sent), operation.data, operation.what.sent);
}

bool advance(Board& board, Operation& operation) {
  execute_alone(board, operation);
  return true;
}

void finish(const Board& board, const Operation& operation) {
  // The second line of the next post, where a payload of this size needs it.
  if (operation.bytes() <= Post::kFirstLineBytes) return;
  const auto* const next =
      reinterpret_cast<const std::byte*>(&board.post_of(operation.sequence + 1, board.rank()));
  fetch_for_writing(next + kCacheLine);
}

}  // namespace lockstep::shm::inlined
