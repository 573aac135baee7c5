#include "lockstep/shm/paths/work.h"

#include <cstring>

namespace lockstep::shm {
namespace {

void reduce_alone(const Board& board, const Operation& operation, size_t first, size_t count,
                  void* destination) {
  if (count == 0) return;
  const size_t offset = first * operation.element();
  if (board.size() == 1) {
    std::byte* const own = operation.data + offset;
    if (destination != own) std::memcpy(destination, own, count * operation.element());
    return;
  }
  const void* sources[kMaxRanks];
  // This rank's part where it lies: what it has just put elsewhere would first have to leave the store
  // buffer.
  for (int m = 0; m < board.size(); ++m) {
    sources[m] = m == board.rank() ? operation.data + offset : board.address_of(operation, m, offset);
  }
  reduce(static_cast<DType>(operation.what.dtype), static_cast<ReduceOp>(operation.what.reduce_op), sources,
         static_cast<size_t>(board.size()), &destination, 1, count);
}

}  // namespace

void execute_alone(Board& board, Operation& operation) {
  switch (operation.what.kind) {
    case OpKind::all_reduce:
      return reduce_alone(board, operation, 0, operation.what.count, operation.data);
    case OpKind::reduce:
      if (operation.root() != board.rank()) return;
      return reduce_alone(board, operation, 0, operation.what.count, operation.data);
    case OpKind::reduce_scatter:
      return reduce_own_parts(board, operation, {0, operation.bytes()});
    default:
      break;
  }
  const auto [copies, copy_count] = copies_of(board, operation);
  for (size_t i = 0; i < copy_count; ++i) {
    const Copy& copy = copies[i];
    if (copy.bytes == 0) continue;
    const std::byte* const from = board.address_of(operation, copy.source, copy.source_offset);
    if (copy.destination != from) std::memcpy(copy.destination, from, copy.bytes);
  }
}

std::pair<const Copy*, size_t> copies_of(Board& board, Operation& operation) {
  if (operation.late_copies != nullptr) {
    std::vector<Copy>& late = board.late_copies_of(operation);
    late = (*operation.late_copies)();
    operation.late_copies = nullptr;
    operation.copies = late.data();
    operation.copy_count = late.size();
  }
  return {operation.copies, operation.copy_count};
}

void reduce_own_parts(const Board& board, const Operation& operation, Range within) {
  const auto reduce_part = [&](Range block, std::byte* destination) {
    const Range wanted = intersection(within, block);
    reduce_alone(board, operation, wanted.begin / operation.element(), wanted.size() / operation.element(),
                 destination + (wanted.begin - block.begin));
  };
  if (operation.output != nullptr) {
    const size_t bytes = operation.bytes() / static_cast<size_t>(board.size());
    const size_t first = static_cast<size_t>(board.rank()) * bytes;
    return reduce_part({first, first + bytes}, operation.output);
  }
  for (size_t i = 0; i < operation.part_count; ++i) {
    const Part& part = operation.parts[i];
    const size_t first = part.first * operation.element();
    reduce_part({first, first + part.count * operation.element()}, operation.data + first);
  }
}

void reduce_range(const Board& board, const Operation& operation, Range range, std::byte* own) {
  if (board.size() == 1) return;  // it lies where it belongs
  const void* sources[kMaxRanks];
  void* destinations[kMaxRanks];
  for (int m = 0; m < board.size(); ++m) {
    destinations[m] = m == board.rank() ? own : board.address_of(operation, m, range.begin);
    sources[m] = destinations[m];
  }
  const bool to_root = !operation.is_all_reduce();
  void* const* const to = to_root ? &destinations[operation.root()] : destinations;
  reduce(static_cast<DType>(operation.what.dtype), static_cast<ReduceOp>(operation.what.reduce_op), sources,
         static_cast<size_t>(board.size()), to, to_root ? size_t{1} : static_cast<size_t>(board.size()),
         range.size() / operation.element());
}

}  // namespace lockstep::shm
