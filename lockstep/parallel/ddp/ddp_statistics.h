// What DistributedDataParallel has seen and decided, and what it says of that on standard error, with
// TORCH_DISTRIBUTED_DEBUG=INFO or at log level info.
#pragma once

#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

class Reducer;

/// What DistributedDataParallel::logging_data() returns: Python's names. Times in nanoseconds, of the last
/// timed step and averaged over those: the first ten and each hundredth, as in Python (all, where
/// TORCH_DISTRIBUTED_DEBUG is set); sizes in bytes, of this rank.
struct DDPLoggingData {
  int world_size = 1, rank = 0;
  std::string module_name, backend_name;
  std::vector<std::string> dtypes;
  int64_t num_parameter_tensors = 0, total_parameter_size_bytes = 0;
  int64_t bucket_cap_bytes = 0;
  bool broadcast_buffers = true, find_unused_parameters = false, gradient_as_bucket_view = true,
       static_graph = false, has_rebuilt_buckets = false;
  std::vector<int64_t> bucket_sizes;          ///< as at construction
  std::vector<int64_t> rebuilt_bucket_sizes;  ///< now, when they were rebuilt
  std::vector<std::string> grad_ready_order;  ///< names; rank 0's order once the ranks have agreed
  int64_t unused_parameter_size = 0;          ///< in the last step
  std::string comm_hook;                      ///< registered; empty: none
  int64_t iteration = 0;                      ///< synchronized backward passes so far
  int64_t forward_compute_time = 0, backward_compute_time = 0, backward_comm_time = 0,
          backward_compute_comm_overlap_time = 0;
  int64_t avg_forward_compute_time = 0, avg_backward_compute_time = 0, avg_backward_comm_time = 0,
          avg_backward_compute_comm_overlap_time = 0;
};

namespace detail {

/// What a wrapper counts beside its reducer.
class DdpStatistics {
 public:
  /// As at construction.
  void set_buckets(const Reducer& reducer);
  void set_comm_hook(std::string name) { comm_hook_ = std::move(name); }
  /// A synchronized forward that was timed.
  void count_forward(std::chrono::nanoseconds time);
  /// Has there been a pass since the last call?
  bool take_new_pass(const Reducer& reducer);
  /// Adds to `data` what this and the reducer know of buckets, passes and times.
  void fill(DDPLoggingData& data, Reducer& reducer) const;

 private:
  std::vector<int64_t> bucket_sizes_{};
  std::string comm_hook_{};
  int64_t forward_time_ = 0, forward_time_sum_ = 0, forwards_ = 0;
  int64_t passes_ = 0;  // that take_new_pass() has seen
};

/// Names of the trainable parameters that got no gradient on this rank in the last pass.
std::vector<std::string> unused_parameters(const Reducer& reducer);

/// Rank 0: what was wrapped and how.
void tell_construction(const DDPLoggingData& data);
/// At log level info: the tied parameters of `module`, without those that are `ignored`, and what LibTorch's
/// optimizers do with them, a line for each tensor.
void tell_tied_parameters(const torch::nn::Module& module, const std::vector<std::string>& ignored);
/// After a pass. Every rank: the names of its parameters without a gradient, in passes that have some. Rank
/// 0: new buckets, and average times after passes 10, 100, 200, ... (Python's sampling).
void tell_pass(const DDPLoggingData& data, const std::vector<std::string>& unused);

}  // namespace detail
}  // namespace lockstep
