// Which gradients travel together: a pure decision, the same on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

/// What the plan needs to know of a parameter.
struct GradientSpec {
  size_t bytes = 0;
  int dtype = 0;  ///< any number that tells dtypes (and devices) apart: a bucket holds one kind
};

struct BucketPlan {
  struct Bucket {
    std::vector<size_t> parameters;  ///< indices into the specs, in the order in which gradients are expected
    std::vector<size_t> offsets;     ///< in bytes, one per parameter, multiples of the alignment
    size_t bytes = 0;                ///< of the whole bucket
  };
  std::vector<Bucket> buckets{};  ///< in the order in which they leave
};
/// Whether the same gradients lie at the same places.
inline bool operator==(const BucketPlan::Bucket& a, const BucketPlan::Bucket& b) {
  return a.parameters == b.parameters && a.offsets == b.offsets;
}
inline bool operator==(const BucketPlan& a, const BucketPlan& b) { return a.buckets == b.buckets; }

/// MKL's results may depend on the alignment of its operands: every gradient starts on a cache line.
inline constexpr size_t kGradientAlignment = 64;

/// Fills buckets in `order` until one has reached its cap, in bytes: the i-th bucket of each kind has the
/// i-th of `caps`, and the last of them is that of all further ones. A parameter is never split, so a bucket
/// may exceed its cap (as in PyTorch). Buckets leave in the order in which their last gradient is expected.
/// `alignment`: of the gradients, in bytes; 1: they follow each other without gaps.
BucketPlan plan_buckets(const std::vector<GradientSpec>& specs, const std::vector<size_t>& order,
                        const std::vector<size_t>& caps, size_t alignment = kGradientAlignment);

/// The order in which gradients are expected before a backward pass has been seen: the parameters backwards.
std::vector<size_t> reverse_order(size_t count);

}  // namespace lockstep
