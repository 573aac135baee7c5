// An optimizer whose state is divided among the ranks: what the two of them (zero_redundancy_optimizer.h,
// fused_zero_optimizer.h) have in common.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/group_tensors.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/zero_partition.h"
#include "lockstep/parallel/join_session.h"

namespace lockstep {
namespace detail {

/// What a rank updates of a parameter. `local` is what its local optimizer holds: the parameter itself, or a
/// flat tensor over the elements in `range` of its memory.
struct Piece {
  at::Tensor parameter, local;
  ElementRange range;
};

/// What clip_grad_norm_() was called with; without `scales` only the norm is wanted.
struct Clipping {
  double max_norm = 0;
  double norm_type = 2;
  bool scales = true;
  bool error_if_nonfinite = false;
};

/// Makes `OptimizerT` over some groups.
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const ParamGroups&)>;

/// In place of an optimizer's class that a program does not name.
struct NoOptimizer {
  void step();
};
template <class OptimizerT, class Defaults>
concept takes_options = std::is_constructible_v<OptimizerT, const ParamGroups&, const Defaults&>;

template <class OptimizerT, class Defaults>
MakeOptimizer maker(const Defaults& defaults) {
  if constexpr (takes_options<OptimizerT, Defaults>) {
    return [defaults](const ParamGroups& groups) { return std::make_unique<OptimizerT>(groups, defaults); };
  } else {
    static_assert(
        takes_options<OptimizerT, Defaults> || std::is_same_v<OptimizerT, NoOptimizer>,
        "these are not the options of this optimizer: give it its own, such as torch::optim::AdamWOptions(1e-3) for "
        "torch::optim::AdamW");
    return {};
  }
}

/// Are the first arguments of an optimizer's constructor parameters, or groups of them, and options?
template <class... Args>
inline constexpr bool kGivesParameters = false;
template <class Given, class Defaults, class... Rest>
inline constexpr bool kGivesParameters<Given, Defaults, Rest...> =
    (std::is_convertible_v<Given, std::vector<at::Tensor>> ||
     std::is_convertible_v<Given, ParamGroups>)&&std::is_base_of_v<torch::optim::OptimizerOptions,
                                                                   std::remove_cvref_t<Defaults>>;

}  // namespace detail

/// What ZeroRedundancyOptimizer and FusedZeroRedundancyOptimizer have in common, whatever optimizer they
/// divide. A tensor that a group lists several times (tied weights) is one parameter; ValueError for one in two
/// groups. param_groups() are those of all parameters; options set there (by set_lr, schedulers) reach the
/// local optimizer with the next step. One thread at a time.
///
/// Under join(), where it must be named beside the models: ranks without inputs step for their share, with
/// the averages that the models leave there and the learning rates of the highest rank that has inputs.
class ShardedOptimizer : public torch::optim::Optimizer, public detail::JoinMember {
 public:
  /// This rank's part of the update, then everybody's parameters. Called by all ranks; blocks. `closure` runs
  /// first, with gradients on.
  torch::Tensor step(LossClosure closure = nullptr) override;
  /// Sets the learning rate of every group, from the next step on.
  void set_lr(double lr);
  /// Gathers everybody's state at rank `to`. Called by all ranks; blocks.
  void consolidate_state_dict(int to = 0);
  /// Takes the options, and of the state this rank's part, from an optimizer over the same parameters in the
  /// same groups, such as another rank's state_dict() or a plain optimizer that was loaded from a file. Not
  /// collective. Throws ValueError when the groups or the shapes differ.
  void load_state_dict(const torch::optim::Optimizer& plain);
  /// optimizer_state_dict() and load_optimizer_state_dict() (optimizer_state.h) of this rank's part; `parts`:
  /// those of all ranks that have saved, however many, or a plain optimizer's state. Not collective.
  StateDict shard_state_dict() const;
  void load_shards(const std::vector<StateDict>& parts);
  /// Adds parameters; called by all ranks, with the same group. Blocks.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// What torch::save writes: state_dict(), as a plain optimizer over the same parameters writes it. Throws
  /// Error on a rank that consolidate_state_dict() has not named.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// The opposite, for torch::load: load_state_dict() of what a plain optimizer has saved.
  void load(torch::serialize::InputArchive& archive) override;

  const ProcessGroup& process_group() const { return group_; }

  // For Recovery. What step() calls when this rank has updated its part, before the others get it; none: nothing.
  void call_after_update(std::function<void()> call) { after_update_ = std::move(call); }
  /// What this rank updates, in an order that is the same in each process of the rank.
  std::vector<at::Tensor> own_weights() const;
  /// All ranks get each other's part of the parameters. Called by all ranks; blocks.
  virtual void share_weights() = 0;

  // For join().
  const ProcessGroup& join_group() const override { return group_; }
  void enter_join(std::shared_ptr<detail::JoinSession> session, int index) override;
  void leave_join() override { join_.reset(); }
  void shadow(const detail::JoinSession::Answer& answer) override;
  void finish_join(int /*last_joined_rank*/) override {}

 protected:
  ShardedOptimizer(const char* name, ProcessGroup group, const detail::ParamGroups& groups,
                   std::unique_ptr<torch::optim::OptimizerOptions> defaults, detail::MakeOptimizer make);

  /// The pieces of `rank`, by group: every element of every parameter belongs to one rank.
  virtual std::vector<std::vector<detail::Piece>> pieces_of(int rank) const = 0;
  /// Parameters were added: to groups that existed never.
  virtual void groups_changed() = 0;

  /// Before this rank's clip_grad_norm_(): under join() the ranks that have joined learn of it, as of step().
  void announce_clip(const detail::Clipping& clipping);
  /// This rank's part of a step, or of a clip_grad_norm_().
  virtual void step_share() = 0;
  virtual void clip_share(const detail::Clipping& /*clipping*/) {}

  /// To be called once by the constructors, when pieces_of works.
  void make_local();
  void sync_options();
  void updated() const {
    if (after_update_) after_update_();
  }
  const torch::optim::Optimizer& consolidated() const;
  torch::optim::Optimizer& local() { return *local_; }
  const std::vector<std::vector<detail::Piece>>& own_pieces() const { return own_; }
  const std::string& name() const { return name_; }
  /// The ranks of process_group(), in a group that nobody else uses.
  const ProcessGroup& own_group() const { return own_group_; }

 private:
  void announce(detail::JoinSession::Phase phase, std::vector<double> values);
  void tell(int source, std::vector<double>& values) const;
  std::vector<double> learning_rates() const;
  detail::ParamGroups groups_over(const std::vector<std::vector<detail::Piece>>& pieces) const;
  detail::ParamGroups whole_groups() const;
  std::vector<detail::StatePiece> own_state_pieces() const;
  void take_state(const torch::optim::Optimizer& shard,
                  const std::vector<std::vector<detail::Piece>>& pieces);

  std::string name_;
  ProcessGroup group_, own_group_;
  detail::MakeOptimizer make_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::vector<std::vector<detail::Piece>> own_;
  std::unique_ptr<torch::optim::Optimizer> consolidated_;
  std::function<void()> after_update_;
  std::shared_ptr<detail::JoinSession> join_;
  int join_index_ = 0;
};

namespace detail {
using lockstep::ShardedOptimizer;
}

}  // namespace lockstep
