#include "lockstep/parallel/ddp/bucket_plan.h"

#include <algorithm>
#include <map>

namespace lockstep {
BucketPlan plan_buckets(const std::vector<GradientSpec>& specs, const std::vector<size_t>& order,
                        const std::vector<size_t>& caps, size_t alignment) {
  struct Filling {
    BucketPlan::Bucket bucket{};
    size_t number = 0;  // of the bucket, among those of its kind
  };
  BucketPlan plan;
  std::map<int, Filling> filling;
  for (const size_t parameter : order) {
    const GradientSpec& spec = specs[parameter];
    Filling& current = filling[spec.dtype];
    current.bucket.parameters.push_back(parameter);
    current.bucket.offsets.push_back(current.bucket.bytes);
    current.bucket.bytes += (spec.bytes + alignment - 1) / alignment * alignment;
    if (current.bucket.bytes >= caps[std::min(current.number, caps.size() - 1)]) {
      plan.buckets.push_back(std::move(current.bucket));
      current = Filling{{}, current.number + 1};
    }
  }
  // What is left ends with the last gradients of all: after every full bucket, by the place of its last
  // gradient.
  std::vector<size_t> place(specs.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::map<size_t, BucketPlan::Bucket> rest;
  for (auto& [dtype, current] : filling) {
    if (current.bucket.parameters.empty()) continue;
    rest.emplace(place[current.bucket.parameters.back()], std::move(current.bucket));
  }
  for (auto& [last, bucket] : rest) plan.buckets.push_back(std::move(bucket));
  return plan;
}

std::vector<size_t> reverse_order(size_t count) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = count - 1 - i;
  return order;
}

}  // namespace lockstep
