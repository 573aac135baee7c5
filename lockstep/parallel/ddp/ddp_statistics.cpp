#include "lockstep/parallel/ddp/ddp_statistics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/log.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/parameters.h"

namespace lockstep::detail {
namespace {

constexpr int64_t kFirstSample = 10, kSampleEvery = 100;

std::string milliseconds(int64_t nanoseconds) {
  return fmt::format("{:.3f} ms", static_cast<double>(nanoseconds) / 1e6);
}

std::vector<int64_t> sizes_of(const BucketPlan& plan) {
  std::vector<int64_t> sizes;
  for (const auto& bucket : plan.buckets) sizes.push_back(static_cast<int64_t>(bucket.bytes));
  return sizes;
}

}  // namespace

void DdpStatistics::set_buckets(const Reducer& reducer) {
  bucket_sizes_ = sizes_of(reducer.buckets().plan());
}

void DdpStatistics::count_forward(std::chrono::nanoseconds time) {
  forward_time_ = time.count();
  forward_time_sum_ += forward_time_;
  ++forwards_;
}

bool DdpStatistics::take_new_pass(const Reducer& reducer) {
  const bool is_new = reducer.statistics().passes > passes_;
  passes_ = reducer.statistics().passes;
  return is_new;
}

void DdpStatistics::fill(DDPLoggingData& data, Reducer& reducer) const {
  const PassStatistics& seen = reducer.statistics();
  data.has_rebuilt_buckets = seen.has_rebuilt_buckets;
  data.bucket_sizes = bucket_sizes_;
  if (seen.has_rebuilt_buckets) data.rebuilt_bucket_sizes = sizes_of(reducer.buckets().plan());
  data.grad_ready_order = reducer.order().names();
  data.unused_parameter_size = static_cast<int64_t>(seen.unused_parameter_bytes);
  data.comm_hook = comm_hook_;
  data.iteration = seen.passes;
  data.forward_compute_time = forward_time_;
  data.backward_compute_time = seen.last.compute.count();
  data.backward_comm_time = seen.last.comm.count();
  data.backward_compute_comm_overlap_time = seen.last.overlap.count();
  if (forwards_ > 0) data.avg_forward_compute_time = forward_time_sum_ / forwards_;
  if (seen.timed_passes == 0) return;
  data.avg_backward_compute_time = seen.sum.compute.count() / seen.timed_passes;
  data.avg_backward_comm_time = seen.sum.comm.count() / seen.timed_passes;
  data.avg_backward_compute_comm_overlap_time = seen.sum.overlap.count() / seen.timed_passes;
}

std::vector<std::string> unused_parameters(const Reducer& reducer) {
  std::vector<std::string> names;
  for (const GradientBuckets::Parameter& parameter : reducer.buckets().parameters()) {
    if (parameter.is_trainable && !parameter.is_ready) names.push_back(parameter.name);
  }
  return names;
}

void tell_construction(const DDPLoggingData& data) {
  if (data.rank != 0) return;
  log::info(fmt::format(
      "DistributedDataParallel of {}: {} ranks, backend {}, {} parameters ({} bytes, {}), buckets of {} "
      "bytes (cap {}), "
      "broadcast_buffers {}, find_unused_parameters {}, gradient_as_bucket_view {}, static_graph {}",
      data.module_name, data.world_size, data.backend_name, data.num_parameter_tensors,
      data.total_parameter_size_bytes, fmt::join(data.dtypes, ", "), fmt::join(data.bucket_sizes, ", "),
      data.bucket_cap_bytes, data.broadcast_buffers, data.find_unused_parameters,
      data.gradient_as_bucket_view, data.static_graph));
}

void tell_tied_parameters(const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  for (TiedNames& names : find_tied_parameters(module)) {
    std::erase_if(names, [&](const std::string& name) {
      return std::find(ignored.begin(), ignored.end(), name) != ignored.end();
    });
    if (names.size() < 2) continue;
    log::info(fmt::format(
        "DistributedDataParallel of {}: {} are one tensor (tied). LibTorch's parameters() lists it {} times, and "
        "the optimizers of torch::optim step it {} times per step() with that list; make them of "
        "lockstep::parameters(module), which lists it once. Lockstep's optimizers step it once either way",
        module.name(), fmt::join(names, " and "), names.size(), names.size()));
  }
}

void tell_pass(const DDPLoggingData& data, const std::vector<std::string>& unused) {
  if (!unused.empty()) {
    log::info(fmt::format("rank {}: no gradient in backward pass {} for {}", data.rank, data.iteration,
                          fmt::join(unused, ", ")));
  }
  if (data.rank != 0) return;
  if (data.iteration == 2 && data.has_rebuilt_buckets) {
    log::info(
        fmt::format("DistributedDataParallel of {}: buckets rebuilt in the order of readiness, of {} bytes",
                    data.module_name, fmt::join(data.rebuilt_bucket_sizes, ", ")));
  }
  if (data.iteration != kFirstSample && data.iteration % kSampleEvery != 0) return;
  log::info(
      fmt::format("DistributedDataParallel of {}: {} passes, on average forward {}, backward {}, "
                  "communication {}, of which {} beside "
                  "computing",
                  data.module_name, data.iteration, milliseconds(data.avg_forward_compute_time),
                  milliseconds(data.avg_backward_compute_time), milliseconds(data.avg_backward_comm_time),
                  milliseconds(data.avg_backward_compute_comm_overlap_time)));
}

}  // namespace lockstep::detail
