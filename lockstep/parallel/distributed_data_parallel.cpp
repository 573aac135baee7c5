#include "lockstep/parallel/distributed_data_parallel.h"

#include <c10/core/GradMode.h>

#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/parallel/reducer.h"

namespace lockstep::detail {
namespace {

/// One line per parameter and buffer: what must agree between ranks.
std::string describe(const torch::nn::Module& module) {
  std::ostringstream text;
  for (const auto& item : module.named_parameters()) {
    text << "parameter " << item.key() << " " << item.value().sizes() << " " << item.value().scalar_type()
         << (item.value().requires_grad() ? " requires_grad" : " frozen") << "\n";
  }
  for (const auto& item : module.named_buffers()) {
    text << "buffer " << item.key() << " " << item.value().sizes() << " " << item.value().scalar_type()
         << "\n";
  }
  return text.str();
}

void verify_same_module(const ProcessGroup& group, const torch::nn::Module& module) {
  const std::vector<std::string> all = group.all_gather_bytes(describe(module));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    std::istringstream first(all[0]), other(all[r]);
    std::string expected, found;
    while (true) {
      const bool has_first = static_cast<bool>(std::getline(first, expected));
      const bool has_other = static_cast<bool>(std::getline(other, found));
      if (!has_first) expected = "nothing more";
      if (!has_other) found = "nothing more";
      if (expected != found || (!has_first && !has_other)) break;
    }
    throw Error("DistributedDataParallel: the ranks' modules differ: rank 0 has " + expected + ", rank " +
                std::to_string(r) + " has " + found);
  }
}

std::vector<NamedTensor> trainable(const torch::nn::Module& module) {
  std::vector<NamedTensor> parameters;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) parameters.push_back({item.key(), item.value()});
  }
  return parameters;
}

ReducerOptions reducer_options(const DistributedDataParallelOptions& options) {
  if (!(options.bucket_cap_mb > 0)) {
    throw ValueError("DistributedDataParallel: bucket_cap_mb must be greater than 0");
  }
  ReducerOptions result;
  result.bucket_bytes = static_cast<size_t>(options.bucket_cap_mb * (1 << 20));
  result.first_bucket_bytes = std::min(result.first_bucket_bytes, result.bucket_bytes);
  result.find_unused_parameters = options.find_unused_parameters;
  return result;
}

}  // namespace

DataParallelCore::DataParallelCore(torch::nn::Module& module, const DistributedDataParallelOptions& options)
    : group_(options.process_group ? *options.process_group : default_world()),
      buffers_(module.buffers()),
      broadcast_buffers_(options.broadcast_buffers) {
  verify_same_module(group_, module);
  if (options.init_sync) {
    for (const at::Tensor& parameter : module.parameters()) group_.broadcast(parameter);
    for (const at::Tensor& buffer : buffers_) group_.broadcast(buffer);
  }
  reducer_ = Reducer::create(trainable(module), group_, reducer_options(options));
}

void DataParallelCore::before_forward(const torch::nn::Module& module) {
  if (!broadcast_buffers_ || !sync || !module.is_training() || group_.size() == 1) return;
  for (const at::Tensor& buffer : buffers_) group_.broadcast(buffer);
}

void DataParallelCore::after_forward(const torch::nn::Module& module,
                                     const std::vector<at::Tensor>& outputs) {
  if (sync && module.is_training() && c10::GradMode::is_enabled()) {
    reducer_->arm(outputs);
  } else if (c10::GradMode::is_enabled()) {
    reducer_->disarm();
  }
}

}  // namespace lockstep::detail
