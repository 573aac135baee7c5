// All-reduce and half-precision compression as communication hooks, under Python's names.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace lockstep {

/// In which group a hook works that was given `group`: the bucket's own where the ranks are the same or none
/// was given, so that the hook's operations never meet the caller's; else `group`.
const ProcessGroup& hook_group(const std::optional<ProcessGroup>& group, const GradBucket& bucket);

/// Averages, with the same bits as without a hook.
Future allreduce_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket);

/// Casts to float16, divides by the group's size, sums, casts back: half the bytes. A gradient beyond 65504
/// becomes infinite.
/// Throws ValueError for complex gradients, as bf16_compress_hook and the wrappers do.
Future fp16_compress_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket);
/// Works like fp16_compress_hook, but casts to bfloat16.
Future bf16_compress_hook(const std::optional<ProcessGroup>& group, GradBucket& bucket);

namespace detail {
/// Averages `tensor`, all of the bucket's gradients in whatever dtype, in place: divides by bucket.divisor(), and
/// rounds once, as without a hook.
Future average_bucket(const GradBucket& bucket, const at::Tensor& tensor,
                      std::optional<WireDtype> wire_dtype = std::nullopt);
/// What a sum that is still to be divided is added up in: `tensor`, or a copy of one in half precision, whose quotient
/// would be rounded twice.
at::Tensor widen_for_sum(const at::Tensor& tensor);
/// Throws ValueError naming `hook` for complex gradients, whose imaginary parts it would lose.
void check_real(const char* hook, const GradBucket& bucket);
Future compress_around(at::ScalarType dtype, GradBucket& bucket, const std::function<Future()>& hook);
}  // namespace detail

/// `hook` on buckets cast to float16; its result is cast back. State as of `hook`.
template <class Hook>
auto fp16_compress_wrapper(Hook hook) {
  return [hook = std::move(hook)](auto& state, GradBucket& bucket) mutable -> Future {
    return detail::compress_around(at::kHalf, bucket, [&]() -> Future { return hook(state, bucket); });
  };
}

/// Runs `hook` on buckets cast to bfloat16; its result is cast back.
template <class Hook>
auto bf16_compress_wrapper(Hook hook) {
  return [hook = std::move(hook)](auto& state, GradBucket& bucket) mutable -> Future {
    return detail::compress_around(at::kBFloat16, bucket, [&]() -> Future { return hook(state, bucket); });
  };
}

}  // namespace lockstep
