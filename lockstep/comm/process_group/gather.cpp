#include "lockstep/comm/process_group/gather.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/memory_overlap.h"
#include "lockstep/comm/process_group/parts.h"

namespace lockstep {
namespace {

using TensorList = std::vector<at::Tensor>;
using Kind = Collective::Kind;

/// Would a result in `output` change a part that a rank still has to take from `parts`? Part `own` may lie at
/// the same place: it is the result.
bool lies_over_parts(const at::Tensor& output, const TensorList& parts, int own) {
  for (size_t r = 0; r < parts.size(); ++r) {
    if (!may_overlap(output, parts[r])) continue;
    const bool is_own = static_cast<int>(r) == own && output.const_data_ptr() == parts[r].const_data_ptr() &&
                        lies_plainly(output) && lies_plainly(parts[r]);
    if (!is_own) return true;
  }
  return false;
}

/// Rows per rank as elements per rank.
std::vector<int64_t> element_splits(const char* what, const at::Tensor& tensor,
                                    const std::vector<int64_t>& rows, int size) {
  const int64_t total_rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t per_row = total_rows == 0 ? 0 : tensor.numel() / total_rows;
  std::vector<int64_t> splits = rows;
  if (splits.empty()) {
    if (total_rows % size != 0) {
      throw ValueError(
          fmt::format("all_to_all_single: {}'s {} rows cannot be divided among {} ranks; give split sizes",
                      what, total_rows, size));
    }
    splits.assign(static_cast<size_t>(size), total_rows / size);
  }
  if (splits.size() != static_cast<size_t>(size) ||
      std::any_of(splits.begin(), splits.end(), [](int64_t split) { return split < 0; }) ||
      std::accumulate(splits.begin(), splits.end(), int64_t{0}) != total_rows) {
    throw ValueError(fmt::format(
        "all_to_all_single: {}'s split sizes must be {} numbers, 0 or more, that add up to its {} rows", what,
        size, total_rows));
  }
  for (int64_t& split : splits) split *= per_row;
  return splits;
}

int64_t read_count(const at::Tensor& count) { return *count.const_data_ptr<int64_t>(); }

}  // namespace

PreparedCollective prepare_broadcast(const Caller& caller, const at::Tensor& tensor, int src) {
  const at::NoGradGuard no_grad;
  check_rank("broadcast: src", src, caller.size);
  PreparedCollective prepared{{.kind = Kind::broadcast, .root = src, .timeout = caller.timeout}};
  if (caller.rank == src) {
    // Only read: a write would be seen by autograd, and fail if elements share memory.
    prepared.outputs = {plain(tensor)};
    prepared.result = {tensor};
  } else {
    write_to(prepared, "broadcast", {tensor}, {.is_written_late = caller.writes_late});
  }
  prepared.inputs = prepared.outputs;
  return prepared;
}

PreparedCollective prepare_scatter(const Caller& caller, const at::Tensor& output, const TensorList& inputs,
                                   int src) {
  const at::NoGradGuard no_grad;
  check_rank("scatter: src", src, caller.size);
  check_count("scatter", inputs.size(), caller.rank == src ? static_cast<size_t>(caller.size) : 0);
  for (const at::Tensor& input : inputs) check_like("scatter: an input", input, output);
  PreparedCollective prepared{{.kind = Kind::scatter, .root = src, .timeout = caller.timeout}, inputs};
  write_to(prepared, "scatter", {output},
           {.is_written_late = caller.writes_late || lies_over_parts(output, inputs, caller.rank)});
  return prepared;
}

PreparedCollective prepare_gather(const Caller& caller, const TensorList& outputs, const at::Tensor& tensor,
                                  int dst) {
  const at::NoGradGuard no_grad;
  check_rank("gather: dst", dst, caller.size);
  check_count("gather", outputs.size(), caller.rank == dst ? static_cast<size_t>(caller.size) : 0);
  for (const at::Tensor& output : outputs) check_like("gather: an output", output, tensor);
  PreparedCollective prepared{{.kind = Kind::gather, .root = dst, .timeout = caller.timeout}};
  write_to(prepared, "gather", outputs, {.is_written_late = caller.writes_late});
  prepared.inputs = {apart_from(plain(tensor), prepared.outputs, caller.rank)};
  return prepared;
}

PreparedCollective prepare_all_gather(const Caller& caller, const TensorList& outputs,
                                      const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  check_count("all_gather", outputs.size(), static_cast<size_t>(caller.size));
  for (const at::Tensor& output : outputs) check_like("all_gather: an output", output, tensor);
  PreparedCollective prepared{{.kind = Kind::all_gather, .timeout = caller.timeout}};
  write_to(prepared, "all_gather", outputs, {.is_written_late = caller.writes_late});
  prepared.inputs = {apart_from(plain(tensor), prepared.outputs, caller.rank)};
  return prepared;
}

PreparedCollective prepare_all_gather_into_tensor(const Caller& caller, const at::Tensor& output,
                                                  const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  check_multiple("all_gather_into_tensor", output, input, caller.size);
  PreparedCollective prepared{{.kind = Kind::all_gather, .timeout = caller.timeout}};
  write_to(prepared, "all_gather_into_tensor", {output}, {.is_written_late = caller.writes_late});
  const at::Tensor flat = prepared.outputs.front().view({-1});
  prepared.outputs.clear();
  for (int r = 0; r < caller.size; ++r) {
    prepared.outputs.push_back(flat.narrow(0, r * input.numel(), input.numel()));
  }
  prepared.inputs = {apart_from(plain(input).view({-1}), prepared.outputs, caller.rank)};
  return prepared;
}

Collective make_all_gather_parts(const Caller& caller, const at::Tensor& tensor,
                                 const std::vector<std::vector<TensorPart>>& parts) {
  if (parts.size() != static_cast<size_t>(caller.size)) {
    throw ValueError(
        fmt::format("all_gather_parts needs the parts of {} ranks, not of {}", caller.size, parts.size()));
  }
  std::vector<TensorPart> all;
  for (const auto& of_rank : parts) {
    check_parts("all_gather_parts", tensor, of_rank);
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  }
  check_disjoint("all_gather_parts", std::move(all));
  Collective collective = in_place(Kind::all_gather_parts, tensor, ReduceOp::SUM, -1, caller.timeout);
  collective.parts = parts;
  return collective;
}

PreparedCollective prepare_all_to_all_single(const Caller& caller, const at::Tensor& output,
                                             const at::Tensor& input,
                                             const std::vector<int64_t>& output_split_sizes,
                                             const std::vector<int64_t>& input_split_sizes) {
  const at::NoGradGuard no_grad;
  if (output.scalar_type() != input.scalar_type()) {
    throw ValueError("all_to_all_single: input and output must have the same dtype");
  }
  auto output_splits = element_splits("output", output, output_split_sizes, caller.size);
  auto input_splits = element_splits("input", input, input_split_sizes, caller.size);
  if (output_split_sizes.empty() && input_split_sizes.empty()) {
    if (output.numel() != input.numel()) {
      throw ValueError(fmt::format(
          "all_to_all_single: without split sizes output must have as many elements as input ({}), "
          "not {}",
          input.numel(), output.numel()));
    }
    output_splits.clear();
    input_splits.clear();
  }
  PreparedCollective prepared{{.kind = Kind::all_to_all, .timeout = caller.timeout}};
  write_to(prepared, "all_to_all_single", {output}, {.is_written_late = caller.writes_late});
  prepared.inputs = {apart_from(plain(input).view({-1}), prepared.outputs, -1)};
  prepared.outputs.front() = prepared.outputs.front().view({-1});
  prepared.output_splits = std::move(output_splits);
  prepared.input_splits = std::move(input_splits);
  return prepared;
}

PreparedCollective prepare_all_to_all(const Caller& caller, const TensorList& outputs,
                                      const TensorList& inputs) {
  const at::NoGradGuard no_grad;
  check_count("all_to_all: inputs", inputs.size(), static_cast<size_t>(caller.size));
  check_count("all_to_all: outputs", outputs.size(), static_cast<size_t>(caller.size));
  const auto check_dtype = [&](const at::Tensor& tensor) {
    if (tensor.scalar_type() == outputs.front().scalar_type()) return;
    throw ValueError("all_to_all: all inputs and outputs must have the same dtype");
  };
  PreparedCollective prepared{{.kind = Kind::all_to_all, .timeout = caller.timeout}};
  TensorList flat_inputs;
  for (const at::Tensor& input : inputs) {
    check_dtype(input);
    flat_inputs.push_back(plain(input).view({-1}));
    prepared.input_splits.push_back(input.numel());
  }
  for (const at::Tensor& output : outputs) {
    check_dtype(output);
    prepared.output_splits.push_back(output.numel());
  }
  check_apart("all_to_all", outputs);
  const auto received =
      std::accumulate(prepared.output_splits.begin(), prepared.output_splits.end(), int64_t{0});
  const at::Tensor flat = at::empty({received}, outputs.front().options());
  int64_t offset = 0;
  for (const at::Tensor& output : outputs) {
    prepared.copies.emplace_back(output.detach(),
                                 flat.narrow(0, offset, output.numel()).view(output.sizes()));
    offset += output.numel();
  }
  prepared.inputs = {at::cat(flat_inputs)};
  prepared.outputs = {flat};
  prepared.result = outputs;
  return prepared;
}

at::Tensor count_rows(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    throw ValueError("all_gather_uneven: the tensor needs a first dimension that may differ");
  }
  at::Tensor count = at::empty({1}, at::kLong);
  count.data_ptr<int64_t>()[0] = tensor.size(0);
  return count;
}

at::Tensor pad_rows(const at::Tensor& tensor, const TensorList& counts) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  for (const at::Tensor& count : counts) sizes[0] = std::max(sizes[0], read_count(count));
  const at::Tensor padded = at::empty(sizes, tensor.options());
  padded.narrow(0, 0, tensor.size(0)).copy_(tensor);
  return padded;
}

TensorList cut_rows(TensorList padded, const TensorList& counts) {
  for (size_t r = 0; r < padded.size(); ++r) {
    padded[r] = padded[r].narrow(0, 0, read_count(counts[r])).clone();
  }
  return padded;
}

}  // namespace lockstep
