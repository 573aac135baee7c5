#include "lockstep/parallel/hooks/default_hooks.h"

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

Future compress(const char* name, at::ScalarType dtype, const std::optional<ProcessGroup>& group,
                const GradBucket& bucket) {
  detail::check_real(name, bucket);
  const ProcessGroup ranks = group_or_world(group);
  const at::Tensor& buffer = bucket.buffer();
  // Divided before the sum, which on some backends is rounded, and may overflow, in this dtype.
  const at::Tensor compressed = buffer.to(dtype).div_(ranks.size());
  return Future(ranks.all_reduce_async(compressed), compressed).then([buffer](const at::Tensor& sum) {
    return buffer.copy_(sum);
  });
}

}  // namespace

ProcessGroup group_or_world(const std::optional<ProcessGroup>& group) {
  return group ? *group : default_world();
}

Future allreduce_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket) {
  return {group_or_world(group).all_reduce_async(bucket.buffer(), {.op = ReduceOp::AVG}), bucket.buffer()};
}

Future fp16_compress_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket) {
  return compress("fp16_compress_hook", at::kHalf, group, bucket);
}

Future bf16_compress_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket) {
  return compress("bf16_compress_hook", at::kBFloat16, group, bucket);
}

void detail::check_real(const char* hook, const GradBucket& bucket) {
  if (!bucket.buffer().is_complex()) return;
  throw ValueError(std::string(hook) + " takes real gradients; bucket " + std::to_string(bucket.index()) +
                   " holds complex ones: use allreduce_hook");
}

Future detail::compress_around(at::ScalarType dtype, GradBucket& bucket,
                               const std::function<Future()>& hook) {
  check_real("a half-precision wrapper", bucket);
  const at::Tensor original = bucket.buffer();
  bucket.set_buffer(original.to(dtype));
  return hook().then([original](const at::Tensor& value) { return original.copy_(value.reshape({-1})); });
}

}  // namespace lockstep
