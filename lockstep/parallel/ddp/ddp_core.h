// The part of DistributedDataParallel that does not depend on the module's type.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/buffer_sync.h"
#include "lockstep/parallel/ddp/counted_forwards.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/ddp/ddp_statistics.h"
#include "lockstep/parallel/ddp/mixed_precision.h"
#include "lockstep/parallel/ddp/module_tensors.h"
#include "lockstep/parallel/ddp/registered_tensors.h"
#include "lockstep/parallel/hooks/comm_hook.h"
#include "lockstep/parallel/join_session.h"
#include "lockstep/state/state_dict.h"

namespace lockstep {

class Reducer;

namespace detail {

/// See DistributedDataParallel. One thread at a time.
class DdpCore : public JoinMember {
 public:
  DdpCore(std::shared_ptr<torch::nn::Module> module, const DistributedDataParallelOptions& options);
  ~DdpCore();
  void before_forward();
  void after_forward(const std::vector<at::Tensor>& outputs);
  /// By an exception, which is the one under way. Throws Error in its place if the module is no longer what was wrapped.
  void forward_failed();
  /// Where forward's arguments are brought first; none: they stay where they are.
  const std::optional<at::Device>& input_device() const { return input_device_; }
  /// What forward's arguments are converted to, if there is such a dtype.
  std::optional<at::ScalarType> input_dtype() const;
  DDPLoggingData logging_data() const;
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);
  void register_comm_hook(CommHook hook, std::string name);
  /// `call` comes before each forward with gradients enabled and at the start of each pass.
  void call_before_gradients(std::function<void()> call);
  /// From here on gradients are averaged over `count` logical ranks, and buffers are copied by
  /// broadcast_buffers() alone.
  void use_logical_ranks(int count);
  /// Rank 0's to all ranks. Called by all; blocks.
  void broadcast_buffers() { buffer_sync_->broadcast(0); }
  const torch::nn::Module& module() const { return *module_; }
  const ProcessGroup& group() const { return group_; }
  const DistributedDataParallelOptions& options() const { return options_; }
  const ModuleTensors& tensors() const { return tensors_; }
  /// What before_forward() leaves for after_forward().
  struct Forward {
    bool synchronizes = false, is_counted = false, is_timed = false, is_traced = false;
    std::chrono::steady_clock::time_point start{};
  };
  Forward& forward_under_way() { return forward_; }
  Reducer& reducer() { return *reducer_; }

  bool sync = true;        // LogicalRanks clears it for all passes but the one that averages
  int no_sync_guards = 0;  // those that live; with one no pass averages

  const ProcessGroup& join_group() const override { return group_; }
  void enter_join(std::shared_ptr<JoinSession> session, int index) override;
  void leave_join() override;
  void recover() override;
  void shadow(const JoinSession::Answer& answer) override;
  void finish_join(int last_joined_rank) override {
    broadcast_tensors(group_, tensors_, last_joined_rank, options_.syncs_buffers());
  }

 private:
  class StepPart;
  void set_up_reducer();
  void follow_module();
  void synchronize_forward(int source);

  std::shared_ptr<torch::nn::Module> module_;
  DistributedDataParallelOptions options_;
  ProcessGroup group_;
  std::optional<ProcessGroup> own_group_;  // the same ranks, for forward and backward
  ModuleTensors tensors_;
  std::optional<RegisteredTensors> registered_;
  std::string additions_;  // what follow_module() cannot follow
  std::optional<at::Device> input_device_;
  std::shared_ptr<Reducer> reducer_;
  std::unique_ptr<BufferSync> buffer_sync_;
  std::shared_ptr<LowPrecision> low_precision_;
  bool has_logical_ranks_ = false;
  Forward forward_{};
  CountedForwards forwards_in_step_;
  std::shared_ptr<JoinSession> join_;
  int join_index_ = 0;
  std::function<void()> before_gradients_;
  std::string name_;                   // of the module's class, for errors
  std::unique_ptr<StepPart> in_step_;  // after what it puts back
  DdpStatistics statistics_;
};

}  // namespace detail
}  // namespace lockstep
