#include "lockstep/parallel/ddp_debug.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/log.h"
#include "lockstep/parallel/parameters.h"

namespace lockstep::detail {
namespace {

constexpr int64_t kFirstSample = 10, kSampleEvery = 100;

std::string milliseconds(int64_t nanoseconds) {
  return fmt::format("{:.3f} ms", static_cast<double>(nanoseconds) / 1e6);
}

}  // namespace

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

void tell_tied_parameters(const torch::nn::Module& module, const std::set<std::string>& ignored) {
  for (TiedNames& names : find_tied_parameters(module)) {
    std::erase_if(names, [&](const std::string& name) { return ignored.contains(name); });
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
