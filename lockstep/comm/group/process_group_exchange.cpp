// ProcessGroup: collectives that move tensors and combine none.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/group/process_group_arguments.h"
#include "lockstep/comm/group/process_group_impl.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

using WorkPtr = ProcessGroup::WorkPtr;
using TensorList = ProcessGroup::TensorList;

namespace {

using Kind = Collective::Kind;
using Timeout = std::chrono::milliseconds;

// These borrow their arguments, which live as long as the expression that starts the operation.
Collective all_gather_of(const at::Tensor& dense, const TensorList& outputs, Timeout timeout) {
  return {.kind = Kind::all_gather, .inputs = {&dense, 1}, .outputs = outputs, .timeout = timeout};
}

Collective all_to_all_of(const at::Tensor& output, const at::Tensor& input,
                         const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits,
                         Timeout timeout) {
  return {.kind = Kind::all_to_all,
          .inputs = {&input, 1},
          .outputs = {&output, 1},
          .output_splits = output_splits,
          .input_splits = input_splits,
          .timeout = timeout};
}

Collective broadcast_of(const at::Tensor& dense, int src, Timeout timeout) {
  return in_place(Kind::broadcast, dense, ReduceOp::SUM, src, timeout);
}

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
      throw ValueError(std::string("all_to_all_single: ") + what + "'s " + std::to_string(total_rows) +
                       " rows cannot be divided among " + std::to_string(size) + " ranks; give split sizes");
    }
    splits.assign(static_cast<size_t>(size), total_rows / size);
  }
  if (splits.size() != static_cast<size_t>(size) ||
      std::any_of(splits.begin(), splits.end(), [](int64_t split) { return split < 0; }) ||
      std::accumulate(splits.begin(), splits.end(), int64_t{0}) != total_rows) {
    throw ValueError(std::string("all_to_all_single: ") + what + "'s split sizes must be " +
                     std::to_string(size) + " numbers, 0 or more, that add up to its " +
                     std::to_string(total_rows) + " rows");
  }
  for (int64_t& split : splits) split *= per_row;
  return splits;
}

}  // namespace

// ----------------------------------------------------------------------------------------- from and to one
// rank

void ProcessGroup::broadcast(const at::Tensor& tensor, BroadcastOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("broadcast: src", options.src, size());
  const at::Tensor dense = plain(tensor);
  // The source is only read: a write would be seen by autograd, and fail where elements share memory.
  const bool takes_copy = rank() != options.src && !dense.is_same(tensor);
  if (takes_copy) check_apart("broadcast", {tensor});
  impl().run(broadcast_of(dense, options.src, timeout_or(options.timeout)));
  if (takes_copy) tensor.copy_(dense);
}

WorkPtr ProcessGroup::broadcast_async(const at::Tensor& tensor, BroadcastOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("broadcast: src", options.src, size());
  const auto start = [&](const at::Tensor& dense) {
    return impl().start(broadcast_of(dense, options.src, timeout_or(options.timeout)));
  };
  if (rank() != options.src) return start_into("broadcast", tensor, false, start);
  WorkPtr work = start(plain(tensor));
  work->set_result({tensor});
  return work;
}

WorkPtr ProcessGroup::scatter_async(const at::Tensor& output, const TensorList& inputs,
                                    ScatterOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("scatter: src", options.src, size());
  check_count("scatter", inputs.size(), rank() == options.src ? static_cast<size_t>(size()) : 0);
  for (const at::Tensor& input : inputs) check_like("scatter: an input", input, output);
  const auto start = [&](const at::Tensor& dense) {
    return impl().start({.kind = Kind::scatter,
                         .inputs = inputs,
                         .outputs = {&dense, 1},
                         .root = options.src,
                         .timeout = timeout_or(options.timeout)});
  };
  return start_into("scatter", output, false, start, lies_over_parts(output, inputs, rank()));
}

void ProcessGroup::scatter(const at::Tensor& output, const TensorList& inputs, ScatterOptions options) const {
  scatter_async(output, inputs, options)->wait();
}

WorkPtr ProcessGroup::gather_async(const TensorList& outputs, const at::Tensor& tensor,
                                   GatherOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("gather: dst", options.dst, size());
  check_count("gather", outputs.size(), rank() == options.dst ? static_cast<size_t>(size()) : 0);
  for (const at::Tensor& output : outputs) check_like("gather: an output", output, tensor);
  return start_into("gather", outputs, false, [&](const TensorList& dense) {
    const at::Tensor input = apart_from(plain(tensor), dense, rank());
    return impl().start({.kind = Kind::gather,
                         .inputs = {&input, 1},
                         .outputs = dense,
                         .root = options.dst,
                         .timeout = timeout_or(options.timeout)});
  });
}

TensorList ProcessGroup::gather(const at::Tensor& tensor, GatherOptions options) const {
  const TensorList outputs = rank() == options.dst ? like_on_every_rank(tensor, size()) : TensorList();
  gather_async(outputs, tensor, options)->wait();
  return outputs;
}

// -------------------------------------------------------------------------------------------- between all
// ranks

WorkPtr ProcessGroup::all_gather_async(const TensorList& outputs, const at::Tensor& tensor,
                                       CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  check_count("all_gather", outputs.size(), static_cast<size_t>(size()));
  for (const at::Tensor& output : outputs) check_like("all_gather: an output", output, tensor);
  return start_into("all_gather", outputs, false, [&](const TensorList& dense) {
    const at::Tensor input = apart_from(plain(tensor), dense, rank());
    return impl().start(all_gather_of(input, dense, timeout_or(options.timeout)));
  });
}

TensorList ProcessGroup::all_gather(const at::Tensor& tensor, CollectiveOptions options) const {
  const TensorList outputs = like_on_every_rank(tensor, size());
  all_gather_async(outputs, tensor, options)->wait();
  return outputs;
}

std::vector<TensorList> ProcessGroup::all_gather_coalesced(const TensorList& tensors,
                                                           CollectiveOptions options) const {
  std::vector<TensorList> outputs;
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) {
    outputs.push_back(like_on_every_rank(tensor, size()));
    works.push_back(all_gather_async(outputs.back(), tensor, options));
  }
  all_of(std::move(works))->wait();
  return outputs;
}

WorkPtr ProcessGroup::all_gather_into_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                                   CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  check_multiple("all_gather_into_tensor", output, input, size());
  return start_into("all_gather_into_tensor", output, false, [&](const at::Tensor& dense) {
    const at::Tensor flat = dense.view({-1});
    TensorList parts;
    for (int r = 0; r < size(); ++r) parts.push_back(flat.narrow(0, r * input.numel(), input.numel()));
    const at::Tensor own = apart_from(plain(input).view({-1}), parts, rank());
    return impl().start(all_gather_of(own, parts, timeout_or(options.timeout)));
  });
}

void ProcessGroup::all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                                          CollectiveOptions options) const {
  all_gather_into_tensor_async(output, input, options)->wait();
}

void ProcessGroup::all_gather_into_tensor_coalesced(const TensorList& outputs, const TensorList& inputs,
                                                    CollectiveOptions options) const {
  const TensorList apart = check_coalesced("all_gather_into_tensor_coalesced", outputs, inputs);
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    works.push_back(all_gather_into_tensor_async(outputs[i], apart[i], options));
  }
  all_of(std::move(works))->wait();
}

TensorList ProcessGroup::all_gather_uneven(const at::Tensor& tensor, CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  if (tensor.dim() == 0)
    throw ValueError("all_gather_uneven: the tensor needs a first dimension that may differ");
  at::Tensor own_rows = at::empty({1}, at::kLong);
  own_rows.data_ptr<int64_t>()[0] = tensor.size(0);
  std::vector<int64_t> rows;
  for (const at::Tensor& theirs : all_gather(own_rows, options))
    rows.push_back(theirs.data_ptr<int64_t>()[0]);
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = *std::max_element(rows.begin(), rows.end());
  const at::Tensor padded = at::empty(sizes, tensor.options());
  padded.narrow(0, 0, tensor.size(0)).copy_(tensor);
  TensorList outputs = all_gather(padded, options);
  for (size_t r = 0; r < outputs.size(); ++r) outputs[r] = outputs[r].narrow(0, 0, rows[r]).clone();
  return outputs;
}

WorkPtr ProcessGroup::all_to_all_single_async(const at::Tensor& output, const at::Tensor& input,
                                              const std::vector<int64_t>& output_split_sizes,
                                              const std::vector<int64_t>& input_split_sizes,
                                              CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  if (output.scalar_type() != input.scalar_type()) {
    throw ValueError("all_to_all_single: input and output must have the same dtype");
  }
  auto output_splits = element_splits("output", output, output_split_sizes, size());
  auto input_splits = element_splits("input", input, input_split_sizes, size());
  if (output_split_sizes.empty() && input_split_sizes.empty()) {
    if (output.numel() != input.numel()) {
      throw ValueError("all_to_all_single: without split sizes output must have as many elements as input (" +
                       std::to_string(input.numel()) + "), not " + std::to_string(output.numel()));
    }
    output_splits.clear();
    input_splits.clear();
  }
  return start_into("all_to_all_single", output, false, [&](const at::Tensor& dense) {
    const at::Tensor sent = apart_from(plain(input).view({-1}), {dense}, -1);
    return impl().start(
        all_to_all_of(dense.view({-1}), sent, output_splits, input_splits, timeout_or(options.timeout)));
  });
}

void ProcessGroup::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                     const std::vector<int64_t>& output_split_sizes,
                                     const std::vector<int64_t>& input_split_sizes,
                                     CollectiveOptions options) const {
  all_to_all_single_async(output, input, output_split_sizes, input_split_sizes, options)->wait();
}

WorkPtr ProcessGroup::all_to_all_async(const TensorList& outputs, const TensorList& inputs,
                                       CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  check_count("all_to_all: inputs", inputs.size(), static_cast<size_t>(size()));
  check_count("all_to_all: outputs", outputs.size(), static_cast<size_t>(size()));
  TensorList flat_inputs;
  std::vector<int64_t> input_splits, output_splits;
  int64_t received = 0;
  for (const at::Tensor& input : inputs) {
    if (input.scalar_type() != outputs.front().scalar_type()) {
      throw ValueError("all_to_all: all inputs and outputs must have the same dtype");
    }
    flat_inputs.push_back(plain(input).view({-1}));
    input_splits.push_back(input.numel());
  }
  for (const at::Tensor& output : outputs) {
    if (output.scalar_type() != outputs.front().scalar_type()) {
      throw ValueError("all_to_all: all inputs and outputs must have the same dtype");
    }
    output_splits.push_back(output.numel());
    received += output.numel();
  }
  check_apart("all_to_all", outputs);
  const at::Tensor flat_output = at::empty({received}, outputs.front().options());
  WorkPtr work = impl().start(all_to_all_of(flat_output, at::cat(flat_inputs), output_splits, input_splits,
                                            timeout_or(options.timeout)));
  work = then(std::move(work), [flat_output, outputs] {
    int64_t offset = 0;
    for (const at::Tensor& output : outputs) {
      output.detach().copy_(flat_output.narrow(0, offset, output.numel()).view(output.sizes()));
      offset += output.numel();
    }
  });
  work->set_result(outputs);
  return work;
}

void ProcessGroup::all_to_all(const TensorList& outputs, const TensorList& inputs,
                              CollectiveOptions options) const {
  all_to_all_async(outputs, inputs, options)->wait();
}

}  // namespace lockstep
