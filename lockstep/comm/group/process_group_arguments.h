// What the members of ProcessGroup have in common: checks of their arguments, and contiguous tensors in place
// of strided ones.
#pragma once

#include <ATen/ops/empty_like.h>

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/comm/group/collective.h"
#include "lockstep/comm/memory_overlap.h"
#include "lockstep/comm/work.h"

namespace lockstep {

// Each throws ValueError. `what`: such as "broadcast: src".
void check_rank(const char* what, int rank, int size);
void check_like(const char* what, const at::Tensor& tensor, const at::Tensor& like);
void check_count(const char* what, size_t found, size_t expected);
void check_multiple(const char* what, const at::Tensor& large, const at::Tensor& small, int size);
void check_pairs(const char* what, const std::vector<at::Tensor>& outputs,
                 const std::vector<at::Tensor>& inputs);
/// Of operations in flight together, which read inputs[i] and write outputs[i]: checks their numbers, and that
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

/// Borrows `dense`.
inline Collective in_place(Collective::Kind kind, const at::Tensor& dense, ReduceOp op, int root,
                           std::chrono::milliseconds timeout) {
  return {.kind = kind,
          .inputs = {&dense, 1},
          .outputs = {&dense, 1},
          .op = op,
          .root = root,
          .timeout = timeout};
}

/// Calls `start` with tensors that lie plainly and stand for `outputs`, which may be strided, and copies the
/// results into the outputs. `read`: the operation reads the outputs too. `apart`: none of the outputs may be
/// written while it runs, because it reads what they lie over. Throws ValueError, which begins with `what`, if
/// outputs overlap each other.
template <class Start>
std::shared_ptr<Work> start_into(const char* what, const std::vector<at::Tensor>& outputs, bool read,
                                 const Start& start, bool apart = false) {
  check_apart(what, outputs);
  std::vector<at::Tensor> dense;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const at::Tensor& output : outputs) {
    if (!apart && lies_plainly(output)) {
      dense.push_back(output);
      continue;
    }
    dense.push_back(read ? plain(output) : at::empty_like(output, at::MemoryFormat::Contiguous));
    copies.emplace_back(output.detach(), dense.back());
  }
  std::shared_ptr<Work> work = start(dense);
  if (!copies.empty()) {
    work = then(std::move(work), [copies = std::move(copies)] {
      for (const auto& [target, result] : copies) target.copy_(result);
    });
  }
  work->set_result(outputs);
  return work;
}

template <class Start>
std::shared_ptr<Work> start_into(const char* what, const at::Tensor& output, bool read, const Start& start,
                                 bool apart = false) {
  return start_into(
      what, std::vector<at::Tensor>{output}, read,
      [&](const std::vector<at::Tensor>& dense) { return start(dense.front()); }, apart);
}

}  // namespace lockstep
