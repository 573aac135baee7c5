#include "lockstep/parallel/hooks/default_hooks.h"

#include <string>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

Future compress(const char* name, at::ScalarType dtype, const std::optional<ProcessGroup>& group,
                const GradBucket& bucket) {
  detail::check_real(name, bucket);
  const ProcessGroup& ranks = hook_group(group, bucket);
  const at::Tensor& buffer = bucket.buffer();
  // Divided before the sum, which on some backends is rounded, and may overflow, in this dtype.
  const at::Tensor compressed = buffer.to(dtype).div_(ranks.size());
  return Future(ranks.all_reduce_async(compressed), compressed).then([buffer](const at::Tensor& sum) {
    return buffer.copy_(sum);
  });
}

}  // namespace

const ProcessGroup& hook_group(const std::optional<ProcessGroup>& group, const GradBucket& bucket) {
  const ProcessGroup& own = bucket.process_group();
  return group && group->global_ranks() != own.global_ranks() ? *group : own;
}

Future allreduce_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket) {
  return {hook_group(group, bucket).all_reduce_async(bucket.buffer(), {.op = ReduceOp::AVG}),
          bucket.buffer()};
}

Future fp16_compress_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket) {
  return compress("fp16_compress_hook", at::kHalf, group, bucket);
}

Future bf16_compress_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket) {
  return compress("bf16_compress_hook", at::kBFloat16, group, bucket);
}

at::Tensor detail::widen_for_sum(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return dtype == at::kBFloat16 || dtype == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

Future detail::average_bucket(const GradBucket& bucket, const at::Tensor& tensor,
                              std::optional<WireDtype> wire_dtype) {
  const ProcessGroup& group = bucket.process_group();
  const int divisor = bucket.divisor();
  if (divisor == group.size()) {
    return {group.all_reduce_async(tensor, {.op = ReduceOp::AVG, .wire_dtype = wire_dtype}), tensor};
  }
  const at::Tensor wide = widen_for_sum(tensor);
  const auto work = group.all_reduce_async(wide, {.op = ReduceOp::SUM, .wire_dtype = wire_dtype});
  return Future(work, wide).then([tensor, divisor](const at::Tensor& sum) -> Future {
    sum.div_(divisor);
    return sum.is_same(tensor) ? tensor : tensor.copy_(sum);
  });
}

void detail::check_real(const char* hook, const GradBucket& bucket) {
  if (!bucket.buffer().is_complex()) return;
  throw ValueError(fmt::format("{} takes real gradients; bucket {} holds complex ones: use allreduce_hook",
                               hook, bucket.index()));
}

Future detail::compress_around(at::ScalarType dtype, GradBucket& bucket,
                               const std::function<Future()>& hook) {
  check_real("a half-precision wrapper", bucket);
  const at::Tensor original = bucket.buffer();
  bucket.set_buffer(original.to(dtype));
  return hook().then([original](const at::Tensor& value) { return original.copy_(value.reshape({-1})); });
}

}  // namespace lockstep
