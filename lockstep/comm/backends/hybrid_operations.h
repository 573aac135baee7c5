// What a rank does for a collective over several machines.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/backends/hybrid_state.h"
#include "lockstep/comm/process_group/collective.h"

namespace lockstep::backends {

/// A collective and the tensors that it names, which it keeps.
struct HybridOperation {
  explicit HybridOperation(const Collective& collective);
  Collective::Kind kind;
  std::vector<at::Tensor> inputs, outputs;
  ReduceOp op;
  int root;
  std::vector<std::vector<TensorPart>> parts;
  bool is_common;
  std::chrono::milliseconds timeout;
  std::string text;  ///< describe()
};

/// What a rank that is no leader has started: shared memory alone. `finish`: to be called once the works have ended; may be
/// empty.
struct MemberPart {
  std::vector<std::shared_ptr<Work>> works{};
  std::function<void()> finish{};
};
/// Starts it. Does not block.
MemberPart start_as_member(HybridState& state, const HybridOperation& operation);

/// Does it, for the whole machine. Blocks until it has ended. Throws what the machine or the wire throws.
void run_as_leader(HybridState& state, const HybridOperation& operation);

/// Does it travel from rank to rank over the network, whatever machines they are on? Each byte crosses the network once anyway,
/// and a message may come from any rank.
bool is_flat(Collective::Kind kind);

/// Throws ValueError for tensors or operators that the backend does not take.
void check_operation(const Collective& collective);

}  // namespace lockstep::backends
