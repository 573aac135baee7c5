// One operation of a process group as a value: what a backend starts, a checker compares, a tracer names.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/types.h"
#include "lockstep/comm/work.h"
#include "lockstep/shm/layout.h"

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
  /// Where the caller copies the result once it has ended, if that is elsewhere than in `outputs`.
  std::span<const at::Tensor> targets{};
  ReduceOp op = ReduceOp::SUM;
  int root = -1;  ///< src or dst; of a message the other rank, or -1 for any
  int tag = 0;
  /// An all_to_all splits its tensors so, in elements, by rank; both empty: equal parts.
  std::span<const int64_t> output_splits{};
  std::span<const int64_t> input_splits{};
  std::span<const std::vector<TensorPart>> parts{};
  /// all_gather_parts: the ranks of a machine have the tensor in common (empty_common).
  bool is_common = false;
  /// An all_reduce may ask for one; none: the environment's.
  std::optional<WireDtype> wire_dtype{};
  std::chrono::milliseconds timeout{};
  /// Those of one number may be under way at once, whatever their memory: who starts them sees to the order. 0: it stands alone.
  uint64_t together = 0;

  bool is_message() const { return kind == Kind::send || kind == Kind::recv; }
  /// The tensor that decides which backend takes it, and how many bytes a tracer counts; null of a barrier.
  const at::Tensor* tensor() const;
  /// Who makes it end, where one of LibTorch's engines takes it.
  Work::EngineKind engine() const;
};

/// One that works in the memory of `dense`, which it borrows.
inline Collective in_place(Collective::Kind kind, const at::Tensor& dense, ReduceOp op, int root,
                           std::chrono::milliseconds timeout) {
  return {.kind = kind,
          .inputs = {&dense, 1},
          .outputs = {&dense, 1},
          .op = op,
          .root = root,
          .timeout = timeout};
}

/// What a kind is called, and the operation of the core that flight recorders and a launcher's watch take it
/// for.
struct KindNames {
  const char* name;
  shm::OpKind core;
};

constexpr KindNames names_of(Collective::Kind kind) {
  using Kind = Collective::Kind;
  using shm::OpKind;
  switch (kind) {
    case Kind::all_reduce:
      return {"all_reduce", OpKind::all_reduce};
    case Kind::reduce:
      return {"reduce", OpKind::reduce};
    case Kind::reduce_scatter:
      return {"reduce_scatter", OpKind::reduce_scatter};
    case Kind::reduce_parts:
      return {"reduce_parts", OpKind::reduce_scatter};
    case Kind::broadcast:
      return {"broadcast", OpKind::broadcast};
    case Kind::scatter:
      return {"scatter", OpKind::scatter};
    case Kind::gather:
      return {"gather", OpKind::gather};
    case Kind::all_gather:
      return {"all_gather", OpKind::all_gather};
    case Kind::all_gather_parts:
      return {"all_gather_parts", OpKind::all_gather};
    case Kind::all_to_all:
      return {"all_to_all", OpKind::all_to_all};
    case Kind::barrier:
      return {"barrier", OpKind::barrier};
    case Kind::send:
      return {"send", OpKind::send};
    case Kind::recv:
      return {"recv", OpKind::recv};
  }
  return {"unknown", OpKind::none};
}

/// What must be the same on every rank, as the flight recorder writes it: "all_reduce (float32[2, 3], SUM)".
std::string describe(const Collective& collective);

}  // namespace lockstep
