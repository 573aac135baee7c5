// The part of DistributedDataParallel that does not depend on the module's type.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/buffer_sync.h"
#include "lockstep/parallel/comm_hook.h"
#include "lockstep/parallel/join_session.h"
#include "lockstep/parallel/mixed_precision.h"
#include "lockstep/state/state_dict.h"

namespace lockstep {

class BatchNormImpl;
class Reducer;

/// Names, meanings and defaults are those of torch.nn.parallel.DistributedDataParallel, except that
/// gradient_as_bucket_view is true, which saves a copy of all gradients.
struct DistributedDataParallelOptions {
  /// Default: the group of all ranks that lockstep::init() made.
  std::optional<ProcessGroup> process_group{};
  /// For a module on one GPU: that GPU's index. Tensors among forward's arguments are brought there.
  std::vector<int> device_ids{};
  /// The same index, or nothing: outputs stay where the module leaves them.
  std::optional<int> output_device{};
  /// A bucket leaves once it holds this many MiB of gradients. Results do not depend on it.
  double bucket_cap_mb = 25;
  /// The same for the first bucket, so that communication starts early; never more than bucket_cap_mb.
  double first_bucket_cap_mb = 1;
  /// The caps of the first, second, ... bucket in MiB; the last one is that of all further buckets. Takes the
  /// place of the two above.
  std::vector<double> bucket_cap_mb_list{};
  /// Buffers (BatchNorm's running statistics) of rank 0 are copied to all before each synchronised forward.
  bool broadcast_buffers = true;
  /// Parameters and buffers of rank 0 are copied to all at construction.
  bool init_sync = true;
  /// Parameters may take no part in a loss. Without it that is an error at the end of backward, on all ranks,
  /// that names them. No graph is searched: setting it costs nothing.
  bool find_unused_parameters = false;
  /// grad() is memory of a bucket: a gradient that you keep changes in the next backward, so clone() it.
  /// Otherwise it is a tensor of its own, copied to its bucket and back.
  bool gradient_as_bucket_view = true;
  /// The graph is the same in every step: parameters may get several gradients in one backward pass
  /// (activation checkpoints that run a backward of their own) or none. The first pass is not overlapped.
  bool static_graph = false;
  /// Forward and backward, the reduction, and buffers in low precision. Forward's arguments that are
  /// floating-point tensors are converted; its result must hand out the tensors through which backward goes,
  /// and one backward goes through each. Modules without sparse gradients.
  std::optional<MixedPrecision> mixed_precision{};
  /// Synchronised forwards per averaging, as in Horovod: gradients of all but each n-th stay local and add
  /// up, as under no_sync(); then the average of the ranks' sums. Not together with join().
  int backward_passes_per_step = 1;
  /// Names, as in named_parameters() and named_buffers(), of what stays each rank's own.
  std::vector<std::string> parameters_and_buffers_to_ignore{};
};

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
  int64_t iteration = 0;                      ///< synchronised backward passes so far
  int64_t forward_compute_time = 0, backward_compute_time = 0, backward_comm_time = 0,
          backward_compute_comm_overlap_time = 0;
  int64_t avg_forward_compute_time = 0, avg_backward_compute_time = 0, avg_backward_comm_time = 0,
          avg_backward_compute_comm_overlap_time = 0;
};

namespace detail {

/// See DistributedDataParallel. One thread at a time.
class DataParallelCore : public JoinMember {
 public:
  DataParallelCore(std::shared_ptr<torch::nn::Module> module, const DistributedDataParallelOptions& options);
  ~DataParallelCore();
  void before_forward();
  void after_forward(const std::vector<at::Tensor>& outputs);
  void forward_failed();  // by an exception
  /// Where forward's arguments are brought first; none: they stay where they are.
  const std::optional<at::Device>& input_device() const { return input_device_; }
  DDPLoggingData logging_data() const;
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);
  void register_comm_hook(CommHook hook, std::string name);
  /// `call` comes before each forward with gradients enabled and at the start of each pass.
  void call_before_gradients(std::function<void()> call);
  /// From here on gradients are averaged over `count` logical ranks, and buffers are copied by
  /// broadcast_buffers() alone. Throws ValueError for options that this does not go with.
  void use_logical_ranks(int count);
  /// The synchronised batch normalisations, with their names. Throws ValueError for one over other ranks.
  std::vector<std::pair<std::string, BatchNormImpl*>> sync_batch_norms() const;
  /// Rank 0's to all ranks. Called by all; blocks.
  void broadcast_buffers() { buffer_sync_->broadcast(0); }
  const torch::nn::Module& module() const { return *module_; }
  const ProcessGroup& group() const { return group_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& buffers() const { return buffers_; }
  /// Of the forward under way: what before_forward() leaves for after_forward().
  struct Forward {
    bool synchronises = false, is_timed = false, is_traced = false;
    std::chrono::steady_clock::time_point start{};
  };
  Forward& forward_under_way() { return forward_; }
  Reducer& reducer() { return *reducer_; }
  /// What forward's arguments are converted to, where there is such a dtype.
  std::optional<at::ScalarType> input_dtype() const;

  bool sync = true;  // no_sync() clears it

  const ProcessGroup& join_group() const override { return group_; }
  void enter_join(std::shared_ptr<JoinSession> session, int index) override;
  void leave_join() override;
  void recover() override;
  void shadow(const JoinSession::Answer& answer) override;
  void finish_join(int last_joined_rank) override { broadcast_all(last_joined_rank); }

 private:
  void synchronise_forward(int source);
  void broadcast_all(int source);
  std::vector<std::string> check_ignored() const;
  void set_up_precision();

  std::shared_ptr<torch::nn::Module> module_;
  DistributedDataParallelOptions options_;
  ProcessGroup group_;
  std::optional<ProcessGroup> own_group_;         // the same ranks, for forward and backward
  std::vector<at::Tensor> parameters_, buffers_;  // without the ignored ones
  std::optional<at::Device> input_device_;
  std::shared_ptr<Reducer> reducer_;
  std::unique_ptr<BufferSync> buffer_sync_;
  std::shared_ptr<LowPrecision> low_precision_;
  bool has_logical_ranks_ = false;
  Forward forward_{};
  int64_t forwards_in_step_ = 0;  // for backward_passes_per_step
  std::shared_ptr<JoinSession> join_;
  int join_index_ = 0;

  std::function<void()> before_gradients_;
  std::string comm_hook_name_;
  std::vector<int64_t> first_bucket_sizes_;
  int64_t told_passes_ = 0;                                         // see ddp_debug.h
  int64_t forward_time_ = 0, forward_time_sum_ = 0, forwards_ = 0;  // timed ones
};

}  // namespace detail
}  // namespace lockstep
