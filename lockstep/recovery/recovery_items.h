// What belongs to the state of a training, as Recovery hands it over to a new process.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/step_members.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/recovery/own_statistics.h"
#include "lockstep/recovery/shard_vault.h"
#include "lockstep/recovery/weight_probe.h"
#include "lockstep/state/state_dict.h"

namespace lockstep::detail {

/// A thing with a name: a module, an optimizer, or something with save and load.
struct RecoveryItem {
  std::string name;
  torch::nn::Module* module = nullptr;
  torch::optim::Optimizer* optimizer = nullptr;
  std::function<StateDict()> save{};
  std::function<void(const StateDict&)> load{};
  // Both or none: what a step that is repeated begins with. None: what save() returned is given to load().
  std::function<void()> keep{}, restore{};
  /// On all ranks, after a rank was replaced. They may communicate.
  std::function<void()> healed{};
  /// What lockrun shows as the number of steps that have ended; none: the Recovery's own.
  std::function<int64_t()> shown_steps{};
  /// The whole object, if it takes part in steps and could not be handed over, had it not been named.
  const void* member = nullptr;
  bool is_alike = true;  ///< on all ranks
  /// Each rank has its own, which outlives it, and which averaging backwards alone change.
  bool is_own = false;
};

/// One thread at a time.
class RecoveryItems {
 public:
  /// Throws ValueError for a name that is there twice, or an item that is there twice.
  explicit RecoveryItems(std::vector<RecoveryItem> items);
  RecoveryItems(const RecoveryItems&) = delete;
  ~RecoveryItems();

  /// Why this rank could not hand it over, or get it; empty: it can.
  std::string problem() const;
  /// Has it something that tells where in its data a program is?
  bool has_position() const;
  /// Are all of them parameters of its models?
  bool have_all(const std::vector<at::Tensor>& weights) const;
  std::vector<std::string> names() const;
  const std::vector<torch::optim::Optimizer*>& optimizers() const { return optimizers_; }
  bool has(const StepMember& member) const;
  /// For lockrun, where `steps` have ended.
  int64_t shown_steps(int64_t steps) const;

  /// No parameter has a gradient.
  void drop_gradients() const;
  /// From here on what this rank alone has outlives it, in `log`: its part of divided optimizers, running statistics of its own
  /// batches. In a new process it is that of the one before.
  void keep_own(shm::SetupLog& log, bool is_new);
  /// After keep_own(): has this rank something that no other one has?
  bool has_own() const { return !shards_.empty() || !own_items_.empty() || own_; }
  /// This rank has done its part of a step: what it alone has is kept, for the case that the others go on.
  void end_step();
  /// The step was skipped: what an averaging backward has changed of what each rank alone has is what it was before.
  void take_back_own() { write_own_items(steps_ + 1); }
  /// So many steps have ended.
  void commit(int64_t steps);
  /// After each step of this rank: `steps` have ended.
  void set_steps(int64_t steps) { steps_ = steps; }
  /// Do the ranks have all weights of before the step together, whatever was written in it?
  bool can_go_back() const { return !shards_.empty() && !probe_->are_whole_written(); }
  /// Divided optimizers, and what they update, are what they were when `steps` had ended, on all ranks; with the options of
  /// rank `donor`. Called by all ranks of `group`; blocks.
  void go_to(int64_t steps, const ProcessGroup& group, int donor);
  /// What restore() returns to is what holds now.
  void keep();
  /// Options of optimizers, and what is neither model nor optimizer, are what they were at keep().
  void restore();
  /// Have weights or the state of an optimizer been written since keep(), as good as certainly?
  bool are_written() const { return probe_->are_written(); }

  /// A hash of each item, in the order of names(): the same on all ranks.
  std::vector<uint64_t> hashes() const;
  /// All ranks get what rank `donor` has, after `steps`; of what each has alone, what it had itself. Called by all ranks of
  /// `group`; blocks.
  void hand_over(int64_t steps, const ProcessGroup& group, int donor);
  /// All ranks have the same state again. Called by all ranks; may block.
  void tell_healed() const;

 private:
  struct Kept {
    StateDict state;                                                       // of a thing
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;  // of an optimizer
  };
  struct Shard {
    ShardedOptimizer* optimizer;
    ShardVault vault;
  };
  struct OwnItem {
    const RecoveryItem* item;
    ShardVault vault;
  };
  void write(Shard& shard, int64_t steps);
  void write_own_items(int64_t steps);
  std::vector<at::Tensor> own_statistics() const;
  std::vector<std::unique_ptr<FusedZeroCore::WritableParameters>> make_writable() const;
  std::vector<RecoveryItem> items_;
  std::vector<at::Tensor> parameters_;  // of models, each once
  std::vector<torch::optim::Optimizer*> optimizers_{};
  std::vector<Kept> kept_;
  std::optional<WeightProbe> probe_{};
  bool notes_gradients_ = false;
  int64_t steps_ = 0;
  std::vector<std::unique_ptr<Shard>> shards_;  // of divided optimizers
  std::vector<std::unique_ptr<OwnItem>> own_items_;
  std::unique_ptr<OwnStatistics> own_;  // null: there are none
};

}  // namespace lockstep::detail
