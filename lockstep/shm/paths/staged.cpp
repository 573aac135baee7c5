#include "lockstep/shm/paths/staged.h"

#include <cstring>

#include "lockstep/shm/paths/direct.h"
#include "lockstep/shm/paths/work.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm::staged {

void offer(Board& board, Operation& operation) {
  operation.staging = board.reserve_staging(operation.sequence);
  std::memcpy(operation.staging, operation.data, operation.what.sent);
  direct::offer(board, operation, operation.staging);
}

bool advance(Board& board, Operation& operation) {
  execute_alone(board, operation);
  return true;
}

void finish(const Board& board, const Operation& operation) {
  fetch_for_writing(&board.slice_of(operation.sequence + 1, board.rank()));
}

}  // namespace lockstep::shm::staged
