// A reduction over several machines, as the leader of one of them sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/uplink/accumulation.h"
#include "lockstep/comm/uplink/sum_plan.h"
#include "lockstep/comm/uplink/wire.h"

namespace lockstep::uplink {

/// Elements of the reduced tensor.
struct Elements {
  size_t first, count;
};

/// What is reduced at once. A machine combines the elements that it owns, after all others have sent theirs.
struct Piece {
  Elements all;                              ///< what the machines have to have at hand for it
  std::vector<std::vector<Elements>> owned;  ///< by machine
  bool returns =
      false;  ///< each machine sends its results to all others; each element is owned by one machine then
};

/// The pieces of a tensor of `count` elements that is reduced for all machines: in one trip if the bytes are few, or if the
/// machines are two and have one sum each; otherwise in two. Then each machine owns so much that the busiest cable carries as
/// little as it can.
std::vector<Piece> plan_all_reduce(const Accumulation& accumulation, const SumPlan& plan, size_t count);
/// ... whose result only `machine` wants.
std::vector<Piece> plan_reduce(const Accumulation& accumulation, const SumPlan& plan, size_t count,
                               int machine);
/// One piece of [ranks * count] elements, of which block r is wanted by rank r alone.
std::vector<Piece> plan_reduce_scatter(const SumPlan& plan, size_t count);

/// The bytes that `machine` sends for such a reduction, frames included.
uint64_t count_sent_bytes(const Accumulation& accumulation, const SumPlan& plan,
                          const std::vector<Piece>& pieces, int machine);

/// Where the elements of this machine come from, and go to. Calls come in the order of pieces.
class MachineData {
 public:
  virtual ~MachineData() = default;
  /// Blocks until the ranks of this machine have given what they have of the piece.
  virtual void gather(size_t piece) = 0;
  /// The partial sums of this machine's `leaf` (an index into SumPlan::leaves_of) of some elements of that piece. They are only
  /// read, and it may be that results of these elements are written over them.
  virtual Buffer partial(size_t piece, size_t leaf, Elements elements) = 0;
  /// Where the results of these elements go.
  virtual Buffer place(size_t piece, Elements elements) = 0;
  /// All results that this machine gets of the piece are stored.
  virtual void finish(size_t piece) = 0;
};

/// Blocks until the reduction has ended on this machine. Throws as Wire does, and what `data` throws.
void reduce_over(Wire& wire, const Call& call, const Accumulation& accumulation, const SumPlan& plan,
                 const std::vector<Piece>& pieces, MachineData& data, const Deadline& deadline);

}  // namespace lockstep::uplink
