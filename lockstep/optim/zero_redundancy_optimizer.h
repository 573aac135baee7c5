// An optimizer whose state is divided among the ranks, by whole parameters (ZeRO, stage 1).
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/optim/sharded_optimizer.h"

namespace lockstep {

/// Holds the options of ZeroRedundancyOptimizer; names are those of Python's arguments.
struct ZeroRedundancyOptimizerOptions {
  /// Default: the group of all ranks that lockstep::init() made.
  std::optional<ProcessGroup> process_group{};
  /// The parameters of a rank lie in one bucket per dtype, so that one broadcast sends them; otherwise each
  /// is sent by itself.
  bool parameters_as_bucket_view = false;
};

namespace detail {

/// See ZeroRedundancyOptimizer.
class ZeroRedundancyCore : public ShardedOptimizer {
 public:
  /// [rank][group]: the parameters that a rank updates.
  using Partition = std::vector<std::vector<std::vector<at::Tensor>>>;
  const Partition& partition_parameters() const { return partition_; }
  void share_weights() override;

 protected:
  ZeroRedundancyCore(const ParamGroups& groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                     MakeOptimizer make, const ZeroRedundancyOptimizerOptions& options);

 private:
  std::vector<std::vector<Piece>> pieces_of(int rank) const override;
  void groups_changed() override;
  void step_share() override;
  void build_partition();
  void build_buckets();
  bool has_moved() const;

  bool parameters_as_bucket_view_;
  Partition partition_;
  std::vector<bool> trainable_;                                 // as of the buckets
  std::vector<std::pair<at::ScalarType, const void*>> places_;  // of the parameters, likewise
  std::vector<std::vector<at::Tensor>> buckets_;                // by rank
};

}  // namespace detail

/// Python's torch.distributed.optim.ZeroRedundancyOptimizer over `OptimizerT`: torch::optim::SGD, Adam,
/// AdamW, FusedAdamW or any other subclass of torch::optim::Optimizer whose step looks at one parameter at a
/// time. Each rank keeps the state of, and updates, about 1/size of the elements, whole parameters, and
/// step() sends them to the others. Gradients are the same on all ranks when it is called, as
/// DistributedDataParallel leaves them. Under join() it is named beside the model. What is done to gradients
/// between backward and step() (clipping), a rank that has run out of inputs does not do to its share.
///
///     ZeroRedundancyOptimizer<FusedAdamW> optimizer(parameters(model), torch::optim::AdamWOptions(1e-3));
///
/// Construction, step(), add_param_group() and consolidate_state_dict() are called by all ranks and block
/// where they communicate; they throw CommError when a rank is lost. Throws ValueError for an empty list of
/// parameters. One thread at a time.
template <class OptimizerT>
class ZeroRedundancyOptimizer : public detail::ZeroRedundancyCore {
  static_assert(
      !std::is_same_v<OptimizerT, detail::NoOptimizer>,
      "ZeroRedundancyOptimizer takes an optimizer's class, not the optimizer: write "
      "ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(parameters, torch::optim::AdamWOptions(1e-3))");
  static_assert(
      requires(OptimizerT & optimizer) { optimizer.step(); },
      "an optimizer whose step needs a closure (LBFGS) looks at all parameters at once");

 public:
  /// `defaults`: OptimizerT's options.
  template <std::derived_from<torch::optim::OptimizerOptions> Defaults>
  ZeroRedundancyOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                          const Defaults& defaults, const ZeroRedundancyOptimizerOptions& options = {})
      : ZeroRedundancyCore(groups, std::make_unique<Defaults>(defaults), detail::maker<OptimizerT>(defaults),
                           options) {}
  /// Takes parameters in one group.
  template <std::derived_from<torch::optim::OptimizerOptions> Defaults>
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, const Defaults& defaults,
                          const ZeroRedundancyOptimizerOptions& options = {})
      : ZeroRedundancyOptimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults,
                                options) {}
  /// For anything else: says at compile time what to write.
  template <class Given, class... Rest>
  requires(
      !detail::kGivesParameters<Given, Rest...> &&
      !std::is_base_of_v<ZeroRedundancyOptimizer,
                         std::remove_cvref_t<Given>>) explicit ZeroRedundancyOptimizer(Given&& /*given*/,
                                                                                       Rest&&... /*rest*/)
      : ZeroRedundancyCore({}, nullptr, nullptr, {}) {
    static_assert(detail::kGivesParameters<Given, Rest...> || std::is_same_v<OptimizerT, detail::NoOptimizer>,
                  "ZeroRedundancyOptimizer takes parameters and the optimizer's options: write "
                  "ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(lockstep::parameters(model), "
                  "torch::optim::AdamWOptions(1e-3))");
  }

  /// The plain optimizer over all parameters that this one stands for, with the state of the last
  /// consolidate_state_dict() and today's options. Throws Error on a rank that has none.
  const OptimizerT& state_dict() const { return static_cast<const OptimizerT&>(consolidated()); }
};

/// For one whose optimizer is not named: says at compile time what to write.
template <class Given, class... Rest>
ZeroRedundancyOptimizer(Given&&, Rest&&...) -> ZeroRedundancyOptimizer<detail::NoOptimizer>;

}  // namespace lockstep
