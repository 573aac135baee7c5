// An optimizer whose state is divided among the ranks: what the two of them (zero_redundancy_optimizer.h,
// fused_zero_optimizer.h) have in common.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/optim/zero_partition.h"

namespace lockstep::detail {

using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

/// What a rank updates of a parameter. `local` is what its local optimizer holds: the parameter itself, or a
/// flat tensor over the elements in `range` of its memory.
struct Piece {
  at::Tensor parameter, local;
  ElementRange range;
};

/// Makes `OptimizerT` over some groups.
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const ParamGroups&)>;
template <class OptimizerT, class Defaults>
MakeOptimizer maker(const Defaults& defaults) {
  return [defaults](const ParamGroups& groups) { return std::make_unique<OptimizerT>(groups, defaults); };
}

/// param_groups() are those of all parameters; options set there (by set_lr, schedulers) reach the local
/// optimizer with the next step. One thread at a time.
class ShardedOptimizer : public torch::optim::Optimizer {
 public:
  /// Gathers everybody's state at rank `to`. Called by all ranks; blocks.
  void consolidate_state_dict(int to = 0);
  /// Takes the options, and of the state this rank's part, from an optimizer over the same parameters in the
  /// same groups, such as another rank's state_dict() or a plain optimizer that was loaded from a file. Not
  /// collective. Throws ValueError when the groups differ.
  void load_state_dict(const torch::optim::Optimizer& plain);
  /// Adds parameters; called by all ranks, with the same group. Blocks.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// What torch::save writes: state_dict(), as a plain optimizer over the same parameters writes it. Throws
  /// Error on a rank that consolidate_state_dict() has not named.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// The opposite, for torch::load: load_state_dict() of what a plain optimizer has saved.
  void load(torch::serialize::InputArchive& archive) override;

  const ProcessGroup& process_group() const { return group_; }

 protected:
  ShardedOptimizer(const char* name, ProcessGroup group, const ParamGroups& groups,
                   std::unique_ptr<torch::optim::OptimizerOptions> defaults, MakeOptimizer make);

  /// The pieces of `rank`, by group: every element of every parameter belongs to one rank.
  virtual std::vector<std::vector<Piece>> pieces_of(int rank) const = 0;
  /// Parameters were added: to groups that existed never.
  virtual void groups_changed() = 0;

  /// To be called once by the constructors, when pieces_of works.
  void make_local();
  void sync_options();
  const torch::optim::Optimizer& consolidated() const;
  torch::optim::Optimizer& local() { return *local_; }
  const std::vector<std::vector<Piece>>& own_pieces() const { return own_; }
  const std::string& name() const { return name_; }

 private:
  ParamGroups groups_over(const std::vector<std::vector<Piece>>& pieces) const;
  ParamGroups whole_groups() const;
  void take_state(const torch::optim::Optimizer& shard, const std::vector<std::vector<Piece>>& pieces);

  std::string name_;
  ProcessGroup group_;
  MakeOptimizer make_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  std::vector<std::vector<Piece>> own_;
  std::unique_ptr<torch::optim::Optimizer> consolidated_;
};

}  // namespace lockstep::detail
