// What a rank does for a collective over several machines.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/comm/backends/hybrid_state.h"
#include "lockstep/comm/process_group/collective.h"
#include "lockstep/comm/uplink/accumulation.h"

namespace lockstep::backends {

/// A collective and the tensors that it names, which it keeps.
struct HybridOperation {
  /// `otherwise`: of sums that do not say how they travel.
  HybridOperation(const Collective& collective, WireDtype otherwise);
  Collective::Kind kind;
  std::vector<at::Tensor> inputs, outputs;
  ReduceOp op;
  int root;
  std::vector<int64_t> output_splits, input_splits;
  std::vector<std::vector<TensorPart>> parts;
  bool is_common;
  uplink::WireForm form;  ///< of its sums between machines
  std::chrono::milliseconds timeout;
  std::string text;  ///< describe()
};

/// What a rank that is no leader has started: shared memory alone.
struct MemberPart {
  std::vector<std::shared_ptr<Work>> works{};
  /// To be called with the number of each work once that has ended; may be empty. Throws ValueError.
  std::function<void(size_t)> ended{};
  std::function<void()> finish{};  ///< to be called once all have ended; may be empty
};
/// Starts it. Does not block.
MemberPart start_as_member(HybridState& state, const HybridOperation& operation);

/// Does it, for the whole machine. Blocks until it has ended. Throws what the machine or the wire throws.
void run_as_leader(HybridState& state, const HybridOperation& operation);

/// Throws ValueError for tensors or operators that the backend does not take.
void check_operation(const Collective& collective);

}  // namespace lockstep::backends
