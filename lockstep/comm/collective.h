// One operation of a process group as a value: what a backend starts, a checker compares, a tracer names.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/types.h"

namespace lockstep {

/// What a rank asks of its group. It borrows everything that it names: whoever starts it keeps what the
/// operation needs after the call.
///
/// Tensors are contiguous, of whatever device and dtype the backend takes. `inputs` are what this rank gives,
/// `outputs` where it wants the result; an operation in place has the same tensor in both.
struct Collective {
  enum class Kind : uint8_t {
    all_reduce,        ///< in place
    reduce,            ///< in place; elsewhere than at `root` the tensor is undefined afterwards
    reduce_scatter,    ///< inputs: one tensor with the blocks of all ranks in order, each as large as the
                       ///< output
    reduce_parts,      ///< in place; parts[0]: those that this rank wants. "lockstep" backend only
    broadcast,         ///< in place
    scatter,           ///< inputs: one per rank at `root`, none elsewhere
    gather,            ///< outputs: one per rank at `root`, none elsewhere
    all_gather,        ///< outputs: one per rank
    all_gather_parts,  ///< in place; parts[r]: what rank r gives. "lockstep" backend only
    all_to_all,        ///< both flat
    barrier,           ///< no tensors
    send,              ///< inputs: one
    recv,              ///< outputs: one
  };
  Kind kind = Kind::barrier;
  std::span<const at::Tensor> inputs{};
  std::span<const at::Tensor> outputs{};
  ReduceOp op = ReduceOp::SUM;
  int root = -1;  ///< src or dst; of a message the other rank, or -1 for any
  int tag = 0;
  /// Of an all_to_all, in elements, by rank; both empty: equal parts.
  std::span<const int64_t> output_splits{};
  std::span<const int64_t> input_splits{};
  std::span<const std::vector<TensorPart>> parts{};
  std::chrono::milliseconds timeout{};

  bool is_message() const { return kind == Kind::send || kind == Kind::recv; }
  /// The tensor that decides which backend takes it, and how many bytes a tracer counts; null of a barrier.
  const at::Tensor* tensor() const;
};

/// "all_reduce"
const char* name_of(Collective::Kind kind);

/// What must be the same on every rank, as the flight recorder writes it: "all_reduce (float32[2, 3], SUM)".
std::string describe(const Collective& collective);

}  // namespace lockstep
