#include "lockstep/parallel/hooks/default_hooks.h"

#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

Future compress(at::ScalarType dtype, const std::optional<ProcessGroup>& group, const at::Tensor& buffer) {
  const ProcessGroup ranks = group_or_world(group);
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
  return compress(at::kHalf, group, bucket.buffer());
}

Future bf16_compress_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket) {
  return compress(at::kBFloat16, group, bucket.buffer());
}

Future detail::compress_around(at::ScalarType dtype, GradBucket& bucket,
                               const std::function<Future()>& hook) {
  const at::Tensor original = bucket.buffer();
  bucket.set_buffer(original.to(dtype));
  return hook().then([original](const at::Tensor& value) { return original.copy_(value.reshape({-1})); });
}

}  // namespace lockstep
