// A norm of many tensors in one fixed order of additions, so that it has the same bits however the
// tensors are divided among ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::detail {

/// A tensor's elements, as they lie in memory where it is dense and as they count otherwise, are taken in
/// chunks of so many. Chunks are summed in double precision, each by itself.
inline constexpr int64_t kNormChunk = 4096;

inline int64_t norm_chunks(int64_t elements) { return (elements + kNormChunk - 1) / kNormChunk; }

/// All elements of `tensor` in one dimension: a view in the order of memory where it is dense, else a copy.
at::Tensor in_memory_order(const at::Tensor& tensor);

/// Stores what each chunk of `flat` (one dimension, contiguous, floating-point or complex) adds to its
/// `norm_type`-norm in sums[0 .. norm_chunks(flat.numel())): the sum of |x|^norm_type, or the largest (least)
/// |x| for infinity (-infinity), or how many are not zero for 0, as at::linalg_vector_norm defines them.
void sum_powers(const at::Tensor& flat, double norm_type, double* sums);

/// The sum of each of `tensors`, of any size but 0, as one chunk. Computed in double precision where the tensor is, in
/// whatever order LibTorch adds there: for tensors that are not on the CPU. Blocks.
std::vector<double> sum_powers_on_device(const std::vector<at::Tensor>& tensors, double norm_type);

/// The norm that those sums make: each tensor's chunks first to last, then the tensors' sums from the least
/// to the largest, so that the order in which tensors are listed does not matter. chunks[t]: how many of
/// `sums` are tensor t's. 0 where there are no sums. A norm of norms, as torch's: the 0-norm counts the
/// tensors that are not all zero.
double norm_of_chunks(const std::vector<double>& sums, const std::vector<size_t>& chunks, double norm_type);

/// By what clip_grad_norm_ multiplies: below 1, or not a number.
inline double clip_scale(double norm, double max_norm) { return max_norm / (norm + 1e-6); }
/// Error for a norm that is not finite, where the user wants one.
void check_norm(double norm, bool error_if_nonfinite);
/// Written so that NaN scales too: a broken step must not look like a clipped one.
inline bool clips(double scale) { return !(scale >= 1); }

}  // namespace lockstep::detail
