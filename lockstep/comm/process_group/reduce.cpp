#include "lockstep/comm/process_group/reduce.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/memory_overlap.h"
#include "lockstep/comm/process_group/parts.h"

namespace lockstep {
namespace {

/// What the backend combines instead of `dense`: the parts of complex numbers.
at::Tensor reducible(const at::Tensor& dense, ReduceOp op) {
  if (op == ReduceOp::PREMUL_SUM && !dense.is_floating_point() && !dense.is_complex()) {
    throw ValueError(
        fmt::format("a reduction cannot combine {} by PREMUL_SUM, which needs a floating-point dtype",
                    c10::toString(dense.scalar_type())));
  }
  if (!dense.is_complex()) return dense;
  if (op != ReduceOp::SUM && op != ReduceOp::AVG && op != ReduceOp::PREMUL_SUM) {
    throw ValueError("complex tensors are reduced by SUM, AVG and PREMUL_SUM alone");
  }
  return at::view_as_real(dense);
}

/// What is multiplied before it is added: a copy, since an earlier operation in flight may read the tensor.
bool is_multiplied(ReduceOp op, double premul_factor) {
  return op == ReduceOp::PREMUL_SUM && premul_factor != 1.0;
}

/// Combines the one output in place, after a multiplication if the operator asks for it.
void combine_in_place(PreparedCollective& prepared, double premul_factor) {
  at::Tensor& tensor = prepared.outputs.front();
  const ReduceOp op = prepared.call.op;
  tensor = reducible(tensor, op);
  if (is_multiplied(op, premul_factor)) tensor.detach().mul_(premul_factor);
  prepared.inputs = prepared.outputs;
}

}  // namespace

PreparedCollective prepare_all_reduce(const Caller& caller, const at::Tensor& tensor,
                                      const AllReduceOptions& options) {
  const at::NoGradGuard no_grad;
  PreparedCollective prepared{{.kind = Collective::Kind::all_reduce,
                               .op = options.op,
                               .wire_dtype = options.wire_dtype,
                               .timeout = caller.timeout}};
  write_to(prepared, "all_reduce", {tensor},
           {.is_read = true,
            .is_written_late = caller.writes_late || is_multiplied(options.op, options.premul_factor)});
  combine_in_place(prepared, options.premul_factor);
  return prepared;
}

PreparedCollective prepare_reduce(const Caller& caller, const at::Tensor& tensor,
                                  const ReduceOptions& options) {
  const at::NoGradGuard no_grad;
  check_rank("reduce: dst", options.dst, caller.size);
  PreparedCollective prepared{
      {.kind = Collective::Kind::reduce, .op = options.op, .root = options.dst, .timeout = caller.timeout}};
  if (caller.rank == options.dst) {
    write_to(prepared, "reduce", {tensor},
             {.is_read = true,
              .is_written_late = caller.writes_late || is_multiplied(options.op, options.premul_factor)});
  } else {
    const bool is_copy = is_multiplied(options.op, options.premul_factor);
    prepared.outputs = {is_copy ? plain(tensor).clone() : plain(tensor)};
  }
  combine_in_place(prepared, options.premul_factor);
  return prepared;
}

PreparedCollective prepare_reduce_scatter(const Caller& caller, const at::Tensor& output,
                                          const at::Tensor& input, const ReduceScatterOptions& options) {
  const at::NoGradGuard no_grad;
  check_multiple("reduce_scatter_tensor", input, output, caller.size);
  at::Tensor blocks = reducible(plain(input), options.op);
  if (options.op == ReduceOp::PREMUL_SUM) blocks = at::mul(blocks, options.premul_factor);
  // The result may lie at the place of this rank's own block, which nobody else reads.
  const auto* const own = static_cast<const std::byte*>(blocks.const_data_ptr()) +
                          static_cast<size_t>(caller.rank) * output.nbytes();
  const bool is_own = lies_plainly(output) && output.const_data_ptr() == own;
  PreparedCollective prepared{
      {.kind = Collective::Kind::reduce_scatter, .op = options.op, .timeout = caller.timeout}};
  write_to(prepared, "reduce_scatter_tensor", {output},
           {.is_written_late = caller.writes_late || (!is_own && may_overlap(output, blocks))});
  prepared.outputs.front() = reducible(prepared.outputs.front(), options.op);
  prepared.inputs = {blocks};
  return prepared;
}

PreparedCollective prepare_reduce_scatter(const Caller& caller, const at::Tensor& output,
                                          const std::vector<at::Tensor>& inputs,
                                          const ReduceScatterOptions& options) {
  const at::NoGradGuard no_grad;
  check_count("reduce_scatter", inputs.size(), static_cast<size_t>(caller.size));
  for (const at::Tensor& input : inputs) check_like("reduce_scatter: an input", input, output);
  return prepare_reduce_scatter(caller, output, at::stack(inputs), options);
}

Collective make_reduce_parts(const Caller& caller, const at::Tensor& tensor,
                             const std::vector<TensorPart>& parts, ReduceOp op) {
  check_parts("reduce_parts", tensor, parts);
  check_disjoint("reduce_parts", parts);
  Collective collective = in_place(Collective::Kind::reduce_parts, tensor, op, -1, caller.timeout);
  collective.parts = {&parts, 1};
  return collective;
}

}  // namespace lockstep
