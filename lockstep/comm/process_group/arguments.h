// What is asked of the arguments of a collective, and contiguous tensors in place of strided ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <vector>

namespace lockstep {

/// Who calls a collective, in a group of how many ranks, and how long it may take.
struct Caller {
  int rank;
  int size;
  std::chrono::milliseconds timeout;
  /// An earlier operation of the group may still write its results: those of a collective are written behind it (OutputUse).
  bool writes_late = false;
};

// Each throws ValueError. `what`: such as "broadcast: src".
void check_rank(const char* what, int rank, int size);
void check_like(const char* what, const at::Tensor& tensor, const at::Tensor& like);
void check_count(const char* what, size_t found, size_t expected);
void check_multiple(const char* what, const at::Tensor& large, const at::Tensor& small, int size);
/// Checks operations in flight together, which read inputs[i] and write outputs[i]: their numbers, and that
/// no outputs overlap. Returns the inputs, with a copy for each that another's output lies over.
std::vector<at::Tensor> check_coalesced(const char* what, const std::vector<at::Tensor>& outputs,
                                        const std::vector<at::Tensor>& inputs);

std::vector<at::Tensor> like_on_every_rank(const at::Tensor& tensor, int size);

/// Is its memory what it says? That of a conjugated or negated view is not, however contiguous it is.
inline bool lies_plainly(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}
/// The tensor itself, or a copy that lies plainly.
inline at::Tensor plain(const at::Tensor& tensor) {
  return lies_plainly(tensor) ? tensor : tensor.contiguous().resolve_conj().resolve_neg();
}

}  // namespace lockstep
