// A batch divided among replicas, and their outputs as one batch again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/data_parallel/tensor_tree.h"

namespace lockstep {

/// How many of `rows` each replica takes: torch.chunk's division, ceil(rows / replicas) for all but the last.
/// So there may be fewer parts than replicas, and never an empty one, except the only one of an empty batch.
std::vector<int64_t> chunk_sizes(int64_t rows, int replicas);

namespace detail {

/// The size of all tensors along `dim`; -1 where no tensor has a dimension. Throws ValueError naming two that
/// differ, and one that lacks `dim`.
int64_t batch_rows(const FoundTensors& found, int64_t dim);
/// Parts along `dim`, views in autograd's graph; tensors without dimensions and undefined ones are the same
/// in all parts. [part][tensor].
std::vector<std::vector<at::Tensor>> split_tensors(const std::vector<at::Tensor>& tensors,
                                                   const std::vector<int64_t>& sizes, int64_t dim);
/// The paths of all replicas' outputs are the same and tensors are defined in all or in none; ValueError
/// otherwise.
void check_alike(const std::vector<FoundTensors>& outputs);
/// One after another along `dim`; of tensors without dimensions a vector.
at::Tensor join_tensors(const std::vector<at::Tensor>& parts, int64_t dim);

}  // namespace detail

/// Divides a batch among `replicas`: torch.nn.parallel.scatter on the CPU. `value`: a tensor, or tuples, maps,
/// vectors, optionals, structs (without constructors, or with `fields()`) of what this list names. Tensors are
/// divided along `dim` as chunk_sizes() says, as views through which gradients flow back; anything else,
/// tensors without dimensions too, goes to every replica. Throws ValueError for tensors whose sizes along
/// `dim` differ, naming two.
template <class T>
std::vector<T> scatter(const T& value, int replicas, int64_t dim = 0) {
  T whole = value;
  const detail::FoundTensors found = detail::find_tensors(whole, "the input");
  const int64_t rows = detail::batch_rows(found, dim);
  const std::vector<int64_t> sizes =
      rows < 0 ? std::vector<int64_t>(static_cast<size_t>(replicas)) : chunk_sizes(rows, replicas);
  std::vector<T> parts(sizes.size(), value);
  const auto tensors = detail::split_tensors(found.tensors, sizes, dim);
  for (size_t part = 0; part < parts.size(); ++part) detail::replace_tensors(parts[part], tensors[part]);
  return parts;
}

/// The replicas' outputs as one batch: torch.nn.parallel.gather on the CPU. Tensors are concatenated along
/// `dim`, those without dimensions become a vector with one element a replica; gradients flow back. What is
/// no tensor is the first replica's. Throws ValueError for no outputs, and where replicas returned different
/// keys, lengths or dtypes.
template <class T>
T gather(const std::vector<T>& outputs, int64_t dim = 0) {
  std::vector<T> parts = outputs;
  std::vector<detail::FoundTensors> found;
  for (T& part : parts) found.push_back(detail::find_tensors(part, "the output"));
  detail::check_alike(found);
  std::vector<at::Tensor> joined;
  for (size_t t = 0; t < found.front().tensors.size(); ++t) {
    std::vector<at::Tensor> tensors;
    for (const auto& part : found) tensors.push_back(part.tensors[t]);
    joined.push_back(detail::join_tensors(tensors, dim));
  }
  T whole = std::move(parts.front());
  detail::replace_tensors(whole, joined);
  return whole;
}

}  // namespace lockstep
