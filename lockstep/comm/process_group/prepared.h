// A collective of tensors that need something first: copies that are contiguous, or apart from each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group/collective.h"

namespace lockstep {

/// Pairs of a tensor of the caller and the one that stands for it, whose elements it is to get.
using TensorCopies = std::vector<std::pair<at::Tensor, at::Tensor>>;
void copy_all(const TensorCopies& copies);

/// A collective, what it borrows, and what is to be done once it has ended.
struct PreparedCollective {
  Collective call;  ///< kind, operator, root, tag and deadline; the rest lies below
  std::vector<at::Tensor> inputs{}, outputs{};
  std::vector<int64_t> output_splits{}, input_splits{};
  TensorCopies copies{};             ///< to be made at the end
  std::vector<at::Tensor> result{};  ///< the tensors of the caller, for Work::result()

  /// Borrows from this object.
  Collective collective() const;
};

/// What an operation does with its outputs besides writing them.
struct OutputUse {
  bool is_read = false;  ///< it reads them too
  /// They may be written only when it has ended: it reads what they lie over, or an earlier operation writes them.
  bool is_written_late = false;
};

/// Fills in `outputs`, `copies` and `result`: tensors that lie plainly stand for `targets`, which may be
/// strided. Throws ValueError, which begins with `what`, if targets overlap each other.
void write_to(PreparedCollective& prepared, const char* what, std::vector<at::Tensor> targets,
              OutputUse use = {});

}  // namespace lockstep
