#include "lockstep/comm/process_group.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/algorithms/choice.h"
#include "lockstep/comm/algorithms/on_tensors.h"
#include "lockstep/comm/group/process_group_arguments.h"
#include "lockstep/comm/group/process_group_impl.h"

namespace lockstep {
namespace {

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
using Kind = Collective::Kind;

Collective all_reduce_of(const at::Tensor& dense, ReduceOp op, std::chrono::milliseconds timeout) {
  return in_place(Kind::all_reduce, dense, op, -1, timeout);
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
  const auto algorithm = algorithms::resolve(options.algorithm);
  const bool is_direct = algorithm == AllReduceAlgorithm::DIRECT;
  const bool needs_nothing =
      lies_plainly(tensor) && !tensor.is_complex() && options.op != ReduceOp::PREMUL_SUM;
  // The usual case, in which every handle that is made or copied would show: 64 bytes take 0.4 us.
  if (is_direct && needs_nothing) {
    impl().run(all_reduce_of(tensor, options.op, timeout));
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor dense = plain(tensor);
  if (!dense.is_same(tensor)) check_apart("all_reduce", {tensor});
  const at::Tensor input = prepared(dense, options.op, options.premul_factor);
  if (is_direct) {
    impl().run(all_reduce_of(input, options.op, timeout));
  } else {
    algorithms::all_reduce(impl(), algorithm, input, options.op, timeout);
  }
  if (!dense.is_same(tensor)) tensor.copy_(dense);
}

WorkPtr ProcessGroup::all_reduce_async(const at::Tensor& tensor, AllReduceOptions options) const {
  if (algorithms::resolve(options.algorithm) != AllReduceAlgorithm::DIRECT) {
    all_reduce(tensor, options);
    WorkPtr done = all_of({});
    done->set_result({tensor});
    return done;
  }
  if (lies_plainly(tensor) && !tensor.is_complex() && options.op != ReduceOp::PREMUL_SUM) {
    // As it lies: the way of every gradient bucket.
    WorkPtr work = impl().start(all_reduce_of(tensor, options.op, timeout_or(options.timeout)));
    work->set_result({tensor});
    return work;
  }
  const at::NoGradGuard no_grad;
  return start_into("all_reduce", tensor, true, [&](const at::Tensor& dense) {
    const at::Tensor input = prepared(dense, options.op, options.premul_factor);
    return impl().start(all_reduce_of(input, options.op, timeout_or(options.timeout)));
  });
}

WorkPtr ProcessGroup::all_reduce_coalesced_async(const TensorList& tensors, AllReduceOptions options) const {
  check_apart("all_reduce_coalesced", tensors);
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
    const at::Tensor input = prepared(dense, options.op, options.premul_factor);
    return impl().start(in_place(Kind::reduce, input, options.op, options.dst, timeout_or(options.timeout)));
  };
  if (rank() == options.dst) return start_into("reduce", tensor, true, start);
  return start(plain(tensor));
}

void ProcessGroup::reduce(const at::Tensor& tensor, ReduceOptions options) const {
  reduce_async(tensor, options)->wait();
}

WorkPtr ProcessGroup::reduce_scatter_tensor_async(const at::Tensor& output, const at::Tensor& input,
                                                  ReduceScatterOptions options) const {
  const at::NoGradGuard no_grad;
  check_multiple("reduce_scatter_tensor", input, output, size());
  at::Tensor blocks = reducible(plain(input), options.op);
  if (options.op == ReduceOp::PREMUL_SUM) blocks = at::mul(blocks, options.premul_factor);
  const auto start = [&](const at::Tensor& dense) {
    const at::Tensor result = reducible(dense, options.op);
    return impl().start({.kind = Kind::reduce_scatter,
                         .inputs = {&blocks, 1},
                         .outputs = {&result, 1},
                         .op = options.op,
                         .timeout = timeout_or(options.timeout)});
  };
  // The result may lie at the place of this rank's own block, which nobody else reads.
  const auto* const own =
      static_cast<const std::byte*>(blocks.const_data_ptr()) + static_cast<size_t>(rank()) * output.nbytes();
  const bool is_own = lies_plainly(output) && output.const_data_ptr() == own;
  return start_into("reduce_scatter_tensor", output, false, start, !is_own && may_overlap(output, blocks));
}

void ProcessGroup::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                                         ReduceScatterOptions options) const {
  reduce_scatter_tensor_async(output, input, options)->wait();
}

void ProcessGroup::reduce_scatter_tensor_coalesced(const TensorList& outputs, const TensorList& inputs,
                                                   ReduceScatterOptions options) const {
  const TensorList apart = check_coalesced("reduce_scatter_tensor_coalesced", outputs, inputs);
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < outputs.size(); ++i) {
    works.push_back(reduce_scatter_tensor_async(outputs[i], apart[i], options));
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

void ProcessGroup::barrier(CollectiveOptions options) const {
  impl().run({.kind = Kind::barrier, .timeout = timeout_or(options.timeout)});
}

WorkPtr ProcessGroup::barrier_async(CollectiveOptions options) const {
  return impl().start({.kind = Kind::barrier, .timeout = timeout_or(options.timeout)});
}

void ProcessGroup::monitored_barrier(CollectiveOptions options) const {
  impl().monitored_barrier(timeout_or(options.timeout));
}

void ProcessGroup::progress() const { impl().progress(); }

}  // namespace lockstep
