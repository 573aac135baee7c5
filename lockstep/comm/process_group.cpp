#include "lockstep/comm/process_group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group_impl.h"

namespace lockstep {
namespace {

/// Copies the result back into a tensor that is not contiguous.
class CopyBackWork : public Work {
 public:
  CopyBackWork(std::shared_ptr<Work> work, at::Tensor result, at::Tensor target)
      : work_(std::move(work)), result_(std::move(result)), target_(std::move(target)) {}
  void wait() override {
    work_->wait();
    copy();
  }
  bool is_completed() override {
    if (!work_->is_completed()) return false;
    copy();
    return true;
  }
  int source_rank() const override { return work_->source_rank(); }

 private:
  void copy() {
    if (!target_.defined()) return;
    target_.copy_(result_);
    target_.reset();
  }
  std::shared_ptr<Work> work_;
  at::Tensor result_, target_;
};

void check_rank(const char* what, int rank, int size) {
  if (rank < 0 || rank >= size) {
    throw ValueError(std::string(what) + " " + std::to_string(rank) + " is outside the group of " +
                     std::to_string(size) + " ranks");
  }
}

void check_tag(int tag) {
  if (tag < 0) throw ValueError("the tag of a message must be 0 or more, not " + std::to_string(tag));
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

/// Calls `fill` with a contiguous tensor that stands for `output`, which may be strided.
template <class Fill>
void into(const at::Tensor& output, const Fill& fill) {
  if (output.is_contiguous()) return fill(output);
  const at::Tensor dense = at::empty_like(output, at::MemoryFormat::Contiguous);
  fill(dense);
  output.copy_(dense);
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
      std::accumulate(splits.begin(), splits.end(), int64_t{0}) != total_rows) {
    throw ValueError(std::string("all_to_all_single: ") + what + "'s split sizes must be " +
                     std::to_string(size) + " numbers that add up to its " + std::to_string(total_rows) +
                     " rows");
  }
  for (int64_t& split : splits) split *= per_row;
  return splits;
}

at::Tensor as_bytes(const std::string& bytes) {
  return at::from_blob(const_cast<char*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

int ProcessGroup::rank() const { return impl_->rank(); }
int ProcessGroup::size() const { return impl_->size(); }
const std::string& ProcessGroup::backend_name() const { return impl_->name(); }
c10::intrusive_ptr<c10d::Backend> ProcessGroup::backend() const { return impl_->backend(); }

void ProcessGroup::all_reduce(const at::Tensor& tensor, AllReduceOptions options) const {
  const at::NoGradGuard no_grad;
  const auto timeout = options.timeout.value_or(impl_->timeout());
  const at::Tensor dense = tensor.contiguous();
  impl_->all_reduce(prepared(dense, options.op, options.premul_factor), options.op, timeout);
  if (dense.is_same(tensor)) return;
  tensor.copy_(dense);
}

std::shared_ptr<Work> ProcessGroup::all_reduce_async(const at::Tensor& tensor,
                                                     AllReduceOptions options) const {
  const at::NoGradGuard no_grad;
  const auto timeout = options.timeout.value_or(impl_->timeout());
  const at::Tensor dense = tensor.contiguous();
  auto work =
      impl_->all_reduce_async(prepared(dense, options.op, options.premul_factor), options.op, timeout);
  if (dense.is_same(tensor)) return work;
  return std::make_shared<CopyBackWork>(std::move(work), dense, tensor.detach());
}

void ProcessGroup::broadcast(const at::Tensor& tensor, BroadcastOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("broadcast: src", options.src, size());
  const auto timeout = options.timeout.value_or(impl_->timeout());
  if (tensor.is_contiguous()) return impl_->broadcast(tensor, options.src, timeout);
  const at::Tensor dense = tensor.contiguous();
  impl_->broadcast(dense, options.src, timeout);
  tensor.copy_(dense);
}

void ProcessGroup::reduce(const at::Tensor& tensor, ReduceOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("reduce: dst", options.dst, size());
  const auto timeout = options.timeout.value_or(impl_->timeout());
  const at::Tensor dense = tensor.contiguous();
  impl_->reduce(prepared(dense, options.op, options.premul_factor), options.op, options.dst, timeout);
  if (rank() == options.dst && !dense.is_same(tensor)) tensor.copy_(dense);
}

void ProcessGroup::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                                         ReduceScatterOptions options) const {
  const at::NoGradGuard no_grad;
  check_multiple("reduce_scatter_tensor", input, output, size());
  into(output, [&](const at::Tensor& dense) {
    at::Tensor blocks = reducible(input.contiguous(), options.op);
    if (options.op == ReduceOp::PREMUL_SUM) blocks = at::mul(blocks, options.premul_factor);
    impl_->reduce_scatter(reducible(dense, options.op), blocks, options.op,
                          options.timeout.value_or(impl_->timeout()));
  });
}

void ProcessGroup::reduce_scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                                  ReduceScatterOptions options) const {
  const at::NoGradGuard no_grad;
  check_count("reduce_scatter", inputs.size(), static_cast<size_t>(size()));
  for (const at::Tensor& input : inputs) check_like("reduce_scatter: an input", input, output);
  reduce_scatter_tensor(output, at::stack(inputs), options);
}

void ProcessGroup::scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                           ScatterOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("scatter: src", options.src, size());
  check_count("scatter", inputs.size(), rank() == options.src ? static_cast<size_t>(size()) : 0);
  for (const at::Tensor& input : inputs) check_like("scatter: an input", input, output);
  into(output, [&](const at::Tensor& dense) {
    impl_->scatter(dense, inputs, options.src, options.timeout.value_or(impl_->timeout()));
  });
}

std::vector<at::Tensor> ProcessGroup::gather(const at::Tensor& tensor, GatherOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("gather: dst", options.dst, size());
  const at::Tensor input = tensor.contiguous();
  std::vector<at::Tensor> outputs;
  for (int r = 0; r < size() && rank() == options.dst; ++r) outputs.push_back(at::empty_like(input));
  impl_->gather(input, outputs, options.dst, options.timeout.value_or(impl_->timeout()));
  return outputs;
}

std::vector<at::Tensor> ProcessGroup::all_gather(const at::Tensor& tensor, CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  const at::Tensor input = tensor.contiguous();
  std::vector<at::Tensor> outputs;
  for (int r = 0; r < size(); ++r) outputs.push_back(at::empty_like(input));
  impl_->all_gather(input, outputs, options.timeout.value_or(impl_->timeout()));
  return outputs;
}

void ProcessGroup::all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                                          CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  check_multiple("all_gather_into_tensor", output, input, size());
  into(output, [&](const at::Tensor& dense) {
    const at::Tensor flat = dense.view({-1});
    std::vector<at::Tensor> parts;
    for (int r = 0; r < size(); ++r) parts.push_back(flat.narrow(0, r * input.numel(), input.numel()));
    impl_->all_gather(input.contiguous().view({-1}), parts, options.timeout.value_or(impl_->timeout()));
  });
}

std::vector<at::Tensor> ProcessGroup::all_gather_uneven(const at::Tensor& tensor,
                                                        CollectiveOptions options) const {
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
  std::vector<at::Tensor> outputs = all_gather(padded, options);
  for (size_t r = 0; r < outputs.size(); ++r) outputs[r] = outputs[r].narrow(0, 0, rows[r]).clone();
  return outputs;
}

void ProcessGroup::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                     const std::vector<int64_t>& output_split_sizes,
                                     const std::vector<int64_t>& input_split_sizes,
                                     CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  if (output.scalar_type() != input.scalar_type()) {
    throw ValueError("all_to_all_single: input and output must have the same dtype");
  }
  const auto output_splits = element_splits("output", output, output_split_sizes, size());
  const auto input_splits = element_splits("input", input, input_split_sizes, size());
  into(output, [&](const at::Tensor& dense) {
    impl_->all_to_all(dense.view({-1}), input.contiguous().view({-1}), output_splits, input_splits,
                      options.timeout.value_or(impl_->timeout()));
  });
}

void ProcessGroup::all_to_all(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                              CollectiveOptions options) const {
  const at::NoGradGuard no_grad;
  check_count("all_to_all: inputs", inputs.size(), static_cast<size_t>(size()));
  check_count("all_to_all: outputs", outputs.size(), static_cast<size_t>(size()));
  std::vector<at::Tensor> flat_inputs;
  std::vector<int64_t> input_splits, output_splits;
  int64_t received = 0;
  for (const at::Tensor& input : inputs) {
    flat_inputs.push_back(input.contiguous().view({-1}));
    input_splits.push_back(input.numel());
  }
  for (const at::Tensor& output : outputs) {
    output_splits.push_back(output.numel());
    received += output.numel();
  }
  const at::Tensor flat_output = at::empty({received}, outputs.front().options());
  impl_->all_to_all(flat_output, at::cat(flat_inputs), output_splits, input_splits,
                    options.timeout.value_or(impl_->timeout()));
  int64_t offset = 0;
  for (const at::Tensor& output : outputs) {
    output.copy_(flat_output.narrow(0, offset, output.numel()).view(output.sizes()));
    offset += output.numel();
  }
}

void ProcessGroup::send(const at::Tensor& tensor, int dst, MessageOptions options) const {
  isend(tensor, dst, options)->wait();
}

int ProcessGroup::recv(const at::Tensor& tensor, std::optional<int> src, MessageOptions options) const {
  const auto work = irecv(tensor, src, options);
  work->wait();
  return work->source_rank();
}

std::shared_ptr<Work> ProcessGroup::isend(const at::Tensor& tensor, int dst, MessageOptions options) const {
  const at::NoGradGuard no_grad;
  check_rank("send: dst", dst, size());
  check_tag(options.tag);
  return impl_->isend(tensor.contiguous(), dst, options.tag, options.timeout.value_or(impl_->timeout()));
}

std::shared_ptr<Work> ProcessGroup::irecv(const at::Tensor& tensor, std::optional<int> src,
                                          MessageOptions options) const {
  const at::NoGradGuard no_grad;
  if (src) check_rank("recv: src", *src, size());
  check_tag(options.tag);
  const auto timeout = options.timeout.value_or(impl_->timeout());
  if (tensor.is_contiguous()) return impl_->irecv(tensor, src.value_or(-1), options.tag, timeout);
  const at::Tensor dense = at::empty_like(tensor, at::MemoryFormat::Contiguous);
  return std::make_shared<CopyBackWork>(impl_->irecv(dense, src.value_or(-1), options.tag, timeout), dense,
                                        tensor.detach());
}

std::vector<std::shared_ptr<Work>> ProcessGroup::batch_isend_irecv(
    const std::vector<P2POp>& operations) const {
  std::vector<std::shared_ptr<Work>> works;
  for (const P2POp& operation : operations) {
    works.push_back(operation.kind == P2POp::Kind::isend
                        ? isend(operation.tensor, operation.peer, {.tag = operation.tag})
                        : irecv(operation.tensor, operation.peer, {.tag = operation.tag}));
  }
  return works;
}

void ProcessGroup::barrier(CollectiveOptions options) const {
  impl_->barrier(options.timeout.value_or(impl_->timeout()));
}

void ProcessGroup::progress() const { impl_->progress(); }

at::Tensor ProcessGroup::empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) const {
  return impl_->empty_shared(sizes, dtype);
}

std::string ProcessGroup::broadcast_bytes(const std::string& bytes, BroadcastOptions options) const {
  at::Tensor size_tensor = at::empty({1}, at::kLong);
  size_tensor.data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
  broadcast(size_tensor, options);
  std::string result = rank() == options.src ? bytes : std::string();
  result.resize(static_cast<size_t>(size_tensor.data_ptr<int64_t>()[0]));
  broadcast(as_bytes(result), options);
  return result;
}

std::vector<std::string> ProcessGroup::all_gather_bytes(const std::string& bytes,
                                                        CollectiveOptions options) const {
  at::Tensor own_size = at::empty({1}, at::kLong);
  own_size.data_ptr<int64_t>()[0] = static_cast<int64_t>(bytes.size());
  const auto sizes = all_gather(own_size, options);
  size_t largest = 0;
  for (const auto& s : sizes) largest = std::max(largest, static_cast<size_t>(s.data_ptr<int64_t>()[0]));
  std::string padded = bytes;
  padded.resize(largest);
  const auto gathered = all_gather(as_bytes(padded), options);
  std::vector<std::string> result;
  for (size_t r = 0; r < gathered.size(); ++r) {
    result.emplace_back(reinterpret_cast<const char*>(gathered[r].data_ptr<uint8_t>()),
                        static_cast<size_t>(sizes[r].data_ptr<int64_t>()[0]));
  }
  return result;
}

}  // namespace lockstep
