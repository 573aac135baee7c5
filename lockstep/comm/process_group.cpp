#include "lockstep/comm/process_group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/algorithms/choice.h"
#include "lockstep/comm/algorithms/on_tensors.h"
#include "lockstep/comm/process_group_impl.h"

namespace lockstep {
namespace {

void check_rank(const char* what, int rank, int size) {
  if (rank < 0 || rank >= size) {
    throw ValueError(std::string(what) + " " + std::to_string(rank) + " is outside the group of " +
                     std::to_string(size) + " ranks");
  }
}

/// What the backend combines instead of `dense`: of complex numbers their parts.
at::Tensor reducible(const at::Tensor& dense, ReduceOp op) {
  if (op == ReduceOp::PREMUL_SUM && !dense.is_floating_point() && !dense.is_complex()) {
    throw ValueError(std::string("a reduction cannot combine ") + c10::toString(dense.scalar_type()) +
                     " by PREMUL_SUM, which needs a floating-point dtype");
  }
  if (!dense.is_complex()) return dense;
  if (op != ReduceOp::SUM && op != ReduceOp::AVG && op != ReduceOp::PREMUL_SUM) {
    throw ValueError("complex tensors are reduced by SUM, AVG and PREMUL_SUM alone");
  }
  return at::view_as_real(dense);
}

/// The same of a tensor that takes the result, multiplied in place where the operator asks for it.
at::Tensor prepared(const at::Tensor& dense, ReduceOp op, double premul_factor) {
  const at::Tensor result = reducible(dense, op);
  if (op == ReduceOp::PREMUL_SUM && premul_factor != 1.0) result.detach().mul_(premul_factor);
  return result;
}

using WorkPtr = ProcessGroup::WorkPtr;
using TensorList = ProcessGroup::TensorList;

/// Calls `start` with contiguous tensors that stand for `outputs`, which may be strided, and copies the
/// results home. `read`: the operation reads the outputs too.
template <class Start>
WorkPtr start_into(const TensorList& outputs, bool read, const Start& start) {
  TensorList dense;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const at::Tensor& output : outputs) {
    if (output.is_contiguous()) {
      dense.push_back(output);
      continue;
    }
    dense.push_back(read ? output.contiguous() : at::empty_like(output, at::MemoryFormat::Contiguous));
    copies.emplace_back(output.detach(), dense.back());
  }
  WorkPtr work = start(dense);
  if (!copies.empty()) {
    work = then(std::move(work), [copies = std::move(copies)] {
      for (const auto& [target, result] : copies) target.copy_(result);
    });
  }
  work->set_result(outputs);
  return work;
}

template <class Start>
WorkPtr start_into(const at::Tensor& output, bool read, const Start& start) {
  return start_into(TensorList{output}, read, [&](const TensorList& dense) { return start(dense.front()); });
}

void check_like(const char* what, const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes()) return;
  std::ostringstream text;
  text << what << " has shape " << tensor.sizes() << " and dtype " << tensor.scalar_type() << ", expected "
       << like.sizes() << " and " << like.scalar_type();
  throw ValueError(text.str());
}

void check_count(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  throw ValueError(std::string(what) + " needs " + std::to_string(expected) +
                   " tensors here, one per rank where there " + "are any, and got " + std::to_string(found));
}

void check_multiple(const char* what, const at::Tensor& large, const at::Tensor& small, int size) {
  if (large.scalar_type() == small.scalar_type() && large.numel() == small.numel() * size) return;
  throw ValueError(std::string(what) + ": the larger tensor must have " + std::to_string(size) +
                   " times the " + std::to_string(small.numel()) +
                   " elements of the smaller and its dtype, but has " + std::to_string(large.numel()));
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

void check_pairs(const char* what, const TensorList& outputs, const TensorList& inputs) {
  if (outputs.size() == inputs.size()) return;
  throw ValueError(std::string(what) + " needs one output per input, not " + std::to_string(outputs.size()) +
                   " for " + std::to_string(inputs.size()));
}

TensorList like_on_every_rank(const at::Tensor& tensor, int size) {
  TensorList outputs;
  for (int r = 0; r < size; ++r) outputs.push_back(at::empty_like(tensor, at::MemoryFormat::Contiguous));
  return outputs;
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl, std::vector<int> global_ranks)
    : handle_(std::make_shared<Handle>()) {
  handle_->rank = impl->rank();
  handle_->backend_name = impl->name();
  handle_->timeout = impl->timeout();
  handle_->global_ranks = std::move(global_ranks);
  if (handle_->global_ranks.empty()) {
    handle_->global_ranks.resize(static_cast<size_t>(impl->size()));
    std::iota(handle_->global_ranks.begin(), handle_->global_ranks.end(), 0);
  }
  handle_->impl = std::move(impl);
}

void ProcessGroup::refuse() const {
  if (is_member()) throw ValueError("this process group was destroyed; it takes no further operations");
  std::string members;
  for (const int rank : global_ranks()) members += (members.empty() ? "" : ", ") + std::to_string(rank);
  throw ValueError("this rank is no member of the process group of ranks " + members +
                   "; ask is_member() before you use it");
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::backend() const { return impl().backend(); }

std::chrono::milliseconds ProcessGroup::timeout() const {
  return handle_->impl ? handle_->impl->timeout() : handle_->timeout;
}

void ProcessGroup::set_timeout(std::chrono::milliseconds timeout) const {
  if (timeout.count() <= 0) {
    throw ValueError("set_timeout: a deadline must be above 0 ms, not " + std::to_string(timeout.count()));
  }
  impl().set_timeout(std::min(timeout, kLongestTimeout));
}

// ------------------------------------------------------------------------------------------------ reductions

void ProcessGroup::all_reduce(const at::Tensor& tensor, AllReduceOptions options) const {
  const auto timeout = timeout_or(options.timeout);
  const auto algorithm = algorithms::resolve(options.algorithm, backend_name(), tensor.nbytes(), size());
  const bool is_direct = algorithm == AllReduceAlgorithm::DIRECT;
  const bool needs_nothing =
      tensor.is_contiguous() && !tensor.is_complex() && options.op != ReduceOp::PREMUL_SUM;
  // The usual case, in which every handle that is made or copied would show: 64 bytes take 0.4 us.
  if (is_direct && needs_nothing) return impl().all_reduce(tensor, options.op, timeout);
  const at::NoGradGuard no_grad;
  const at::Tensor dense = tensor.contiguous();
  const at::Tensor input = prepared(dense, options.op, options.premul_factor);
  if (is_direct) {
    impl().all_reduce(input, options.op, timeout);
  } else {
    algorithms::all_reduce(impl(), algorithm, input, options.op, timeout);
  }
  if (!dense.is_same(tensor)) tensor.copy_(dense);
}

WorkPtr ProcessGroup::all_reduce_async(const at::Tensor& tensor, AllReduceOptions options) const {
  if (algorithms::resolve(options.algorithm, backend_name(), tensor.nbytes(), size()) !=
      AllReduceAlgorithm::DIRECT) {
    all_reduce(tensor, options);
    WorkPtr done = all_of({});
    done->set_result({tensor});
    return done;
  }
  if (tensor.is_contiguous() && !tensor.is_complex() && options.op != ReduceOp::PREMUL_SUM) {
    // As it lies: the way of every gradient bucket.
    WorkPtr work = impl().start_all_reduce(tensor, options.op, timeout_or(options.timeout));
    work->set_result({tensor});
    return work;
  }
  const at::NoGradGuard no_grad;
  return start_into(tensor, true, [&](const at::Tensor& dense) {
    return impl().start_all_reduce(prepared(dense, options.op, options.premul_factor), options.op,
                                   timeout_or(options.timeout));
  });
}

WorkPtr ProcessGroup::all_reduce_coalesced_async(const TensorList& tensors, AllReduceOptions options) const {
  std::vector<WorkPtr> works;
  for (const at::Tensor& tensor : tensors) works.push_back(all_reduce_async(tensor, options));
  WorkPtr work = all_of(std::move(works));
  work->set_result(tensors);
  return work;
}

void ProcessGroup::all_reduce_coalesced(const TensorList& tensors, AllReduceOptions options) const {
  all_reduce_coalesced_async(tensors, options)->wait();
}

WorkPtr ProcessGroup::reduce_async(const at::Tensor& tensor, ReduceOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("reduce: dst", options.dst, size());
  const auto start = [&](const at::Tensor& dense) {
    return impl().start_reduce(prepared(dense, options.op, options.premul_factor), options.op, options.dst,
                               timeout_or(options.timeout));
  };
  if (rank() == options.dst) return start_into(tensor, true, start);
  return start(tensor.contiguous());
}

void ProcessGroup::reduce(const at::Tensor& tensor, ReduceOptions options) const {
  reduce_async(tensor, options)->wait();
}

WorkPtr ProcessGroup::reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                                  ReduceScatterOptions options) const {
  const at::NoGradGuard no_grad;
  check_multiple("reduce_scatter_tensor", input, output, size());
  at::Tensor blocks = reducible(input.contiguous(), options.op);
  if (options.op == ReduceOp::PREMUL_SUM) blocks = at::mul(blocks, options.premul_factor);
  return start_into(output, false, [&](const at::Tensor& dense) {
    return impl().start_reduce_scatter(reducible(dense, options.op), blocks, options.op,
                                       timeout_or(options.timeout));
  });
}

void ProcessGroup::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                                         ReduceScatterOptions options) const {
  reduce_scatter_tensor_async(output, input, options)->wait();
}

void ProcessGroup::reduce_scatter_tensor_coalesced(const TensorList& outputs, const TensorList& inputs,
                                                   ReduceScatterOptions options) const {
  check_pairs("reduce_scatter_tensor_coalesced", outputs, inputs);
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    works.push_back(reduce_scatter_tensor_async(outputs[i], inputs[i], options));
  }
  all_of(std::move(works))->wait();
}

WorkPtr ProcessGroup::reduce_scatter_async(const at::Tensor& output, const TensorList& inputs,
                                           ReduceScatterOptions options) const {
  const at::NoGradGuard no_grad;
  check_count("reduce_scatter", inputs.size(), static_cast<size_t>(size()));
  for (const at::Tensor& input : inputs) check_like("reduce_scatter: an input", input, output);
  return reduce_scatter_tensor_async(output, at::stack(inputs), options);
}

void ProcessGroup::reduce_scatter(const at::Tensor& output, const TensorList& inputs,
                                  ReduceScatterOptions options) const {
  reduce_scatter_async(output, inputs, options)->wait();
}

// ----------------------------------------------------------------------------------------- from and to one
// rank

void ProcessGroup::broadcast(const at::Tensor& tensor, BroadcastOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("broadcast: src", options.src, size());
  const at::Tensor dense = tensor.contiguous();
  impl().broadcast(dense, options.src, timeout_or(options.timeout));
  if (!dense.is_same(tensor)) tensor.copy_(dense);
}

WorkPtr ProcessGroup::broadcast_async(const at::Tensor& tensor, BroadcastOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("broadcast: src", options.src, size());
  return start_into(tensor, rank() == options.src, [&](const at::Tensor& dense) {
    return impl().start_broadcast(dense, options.src, timeout_or(options.timeout));
  });
}

WorkPtr ProcessGroup::scatter_async(const at::Tensor& output, const TensorList& inputs,
                                    ScatterOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("scatter: src", options.src, size());
  check_count("scatter", inputs.size(), rank() == options.src ? static_cast<size_t>(size()) : 0);
  for (const at::Tensor& input : inputs) check_like("scatter: an input", input, output);
  return start_into(output, false, [&](const at::Tensor& dense) {
    return impl().start_scatter(dense, inputs, options.src, timeout_or(options.timeout));
  });
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
  return start_into(outputs, false, [&](const TensorList& dense) {
    return impl().start_gather(tensor.contiguous(), dense, options.dst, timeout_or(options.timeout));
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
  return start_into(outputs, false, [&](const TensorList& dense) {
    return impl().start_all_gather(tensor.contiguous(), dense, timeout_or(options.timeout));
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
  return start_into(output, false, [&](const at::Tensor& dense) {
    const at::Tensor flat = dense.view({-1});
    TensorList parts;
    for (int r = 0; r < size(); ++r) parts.push_back(flat.narrow(0, r * input.numel(), input.numel()));
    return impl().start_all_gather(input.contiguous().view({-1}), parts, timeout_or(options.timeout));
  });
}

void ProcessGroup::all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                                          CollectiveOptions options) const {
  all_gather_into_tensor_async(output, input, options)->wait();
}

void ProcessGroup::all_gather_into_tensor_coalesced(const TensorList& outputs, const TensorList& inputs,
                                                    CollectiveOptions options) const {
  check_pairs("all_gather_into_tensor_coalesced", outputs, inputs);
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    works.push_back(all_gather_into_tensor_async(outputs[i], inputs[i], options));
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
  return start_into(output, false, [&](const at::Tensor& dense) {
    return impl().start_all_to_all(dense.view({-1}), input.contiguous().view({-1}), output_splits,
                                   input_splits, timeout_or(options.timeout));
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
    flat_inputs.push_back(input.contiguous().view({-1}));
    input_splits.push_back(input.numel());
  }
  for (const at::Tensor& output : outputs) {
    if (output.scalar_type() != outputs.front().scalar_type()) {
      throw ValueError("all_to_all: all inputs and outputs must have the same dtype");
    }
    output_splits.push_back(output.numel());
    received += output.numel();
  }
  const at::Tensor flat_output = at::empty({received}, outputs.front().options());
  WorkPtr work = impl().start_all_to_all(flat_output, at::cat(flat_inputs), output_splits, input_splits,
                                         timeout_or(options.timeout));
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

void ProcessGroup::barrier(CollectiveOptions options) const { impl().barrier(timeout_or(options.timeout)); }

WorkPtr ProcessGroup::barrier_async(CollectiveOptions options) const {
  return impl().start_barrier(timeout_or(options.timeout));
}

void ProcessGroup::monitored_barrier(CollectiveOptions options) const {
  impl().monitored_barrier(timeout_or(options.timeout));
}

void ProcessGroup::progress() const { impl().progress(); }

}  // namespace lockstep
