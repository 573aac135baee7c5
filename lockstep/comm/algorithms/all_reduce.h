// All-reduce over messages between two ranks, as the literature has it: to study, to compare, and for
// backends whose own is slower. Every rank calls the same function with the same sizes.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/types.h"
#include "lockstep/shm/reduce/reduce.h"

namespace lockstep::algorithms {

/// Messages between the ranks of a group.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Memory for an algorithm, once, as long as this object lives. If exchange() throws, a message may still arrive there.
  virtual std::byte* make_scratch(size_t bytes) = 0;
  /// Sends to one rank while it receives from another; 0 bytes: not at all. Blocks until both are done.
  virtual void exchange(const void* out, size_t out_bytes, int to, void* in, size_t in_bytes, int from) = 0;
};

/// Combines `count` elements at `data` of all ranks, in place. Blocks. Needs memory for at most
/// kPieceBytes per rank beside `data`, RING and HALVING_DOUBLING for as much as `data`.
///
/// REDUCE_BROADCAST, ALL_TO_ALL and TREE add in the order of shm::reduce and give its bits; HIERARCHICAL does
/// where nodes hold aligned blocks of a power of two of ranks; RING and HALVING_DOUBLING give the same bits
/// whenever they are repeated. All but the first two round after every addition: convert half-precision
/// numbers to fp32 first. algorithm: neither AUTO nor DIRECT. nodes: the node of each rank, of HIERARCHICAL, the same list
/// on all ranks.
void all_reduce(Transport& transport, AllReduceAlgorithm algorithm, void* data, size_t count,
                shm::DType dtype, ReduceOp reduction, const std::vector<int>& nodes);

/// What is sent at a time where an algorithm can work in pieces.
inline constexpr size_t kPieceBytes = 256 * 1024;

/// Does it combine all ranks' elements at once, with one rounding, whatever the dtype?
constexpr bool rounds_once(AllReduceAlgorithm algorithm) {
  return algorithm == AllReduceAlgorithm::REDUCE_BROADCAST || algorithm == AllReduceAlgorithm::ALL_TO_ALL;
}

}  // namespace lockstep::algorithms
