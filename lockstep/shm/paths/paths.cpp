#include "lockstep/shm/paths/paths.h"

#include "lockstep/shm/paths/direct.h"
#include "lockstep/shm/paths/inlined.h"
#include "lockstep/shm/paths/staged.h"
#include "lockstep/shm/paths/windowed.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm::paths {

Memory memory_for(const Operation& operation, const Arena& arena) {
  const size_t sent = operation.what.sent;
  const size_t size = operation.bytes();
  const bool common_size = operation.late_copies == nullptr;
  if (common_size && size <= kInlineBytes) return Memory::post;
  if (sent == 0) return Memory::none;
  const bool registered = arena.contains(operation.data, sent);
  const size_t most_staged = registered && operation.is_sliced() ? kStagedReductionBytes : kStagingBytes;
  if (common_size && size <= most_staged) return Memory::staging;
  return registered ? Memory::arena : Memory::window;
}

Path path_of(const Board& board, const Operation& operation) {
  Path path = Path::staged;
  for (int m = 0; m < board.size(); ++m) {
    switch (board.post_of(operation.sequence, m).what.memory) {
      case Memory::post:
        return Path::inlined;
      case Memory::window:
        return Path::windowed;
      case Memory::arena:
        path = Path::direct;
        break;
      case Memory::none:
      case Memory::staging:
        break;
    }
  }
  return path;
}

void offer(Board& board, Operation& operation) {
  if (operation.what.memory == Memory::post) return inlined::offer(board, operation);
  Slice& slice = board.own_slice_of(operation);
  slice.done.store(0, std::memory_order_relaxed);
  slice.filled.store(0, std::memory_order_relaxed);
  slice.unclaimed.store(0, std::memory_order_relaxed);
  switch (operation.what.memory) {
    case Memory::none:
    case Memory::post:
      return;
    case Memory::staging:
      return staged::offer(board, operation);
    case Memory::arena:
      return direct::offer(board, operation, operation.data);
    case Memory::window:
      return windowed::offer(board, operation);
  }
}

bool advance(Board& board, Operation& operation, bool help) {
  switch (operation.path) {
    case Path::undecided:
      break;
    case Path::inlined:
      return inlined::advance(board, operation);
    case Path::staged:
      return staged::advance(board, operation);
    case Path::direct:
      return direct::advance(board, operation, help);
    case Path::windowed:
      return windowed::advance(board, operation);
  }
  return false;
}

void finish(const Board& board, const Operation& operation) {
  fetch_for_writing(&board.post_of(operation.sequence + 1, board.rank()));
  switch (operation.path) {
    case Path::undecided:
      break;
    case Path::inlined:
      return inlined::finish(board, operation);
    case Path::staged:
      return staged::finish(board, operation);
    case Path::direct:
      return direct::finish(board, operation);
    case Path::windowed:
      return windowed::finish(board, operation);
  }
}

bool needs(const Board& board, const Operation& operation, int member) {
  switch (operation.path) {
    case Path::undecided:
      break;
    case Path::inlined:
      return inlined::needs();
    case Path::staged:
      return staged::needs();
    case Path::direct:
      return direct::needs(board, operation, member);
    case Path::windowed:
      return windowed::needs(board, operation, member);
  }
  return false;
}

}  // namespace lockstep::shm::paths
