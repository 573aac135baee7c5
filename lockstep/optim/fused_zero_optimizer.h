// An optimizer fused into the averaging of gradients, for ranks that share memory.
#pragma once

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <concepts>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/optim/gradient_slices.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/optim/write_protection.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace lockstep {

/// Holds the options of FusedZeroRedundancyOptimizer; they are the same on all ranks.
struct FusedZeroRedundancyOptimizerOptions {
  /// A group of the DistributedDataParallel's ranks (ValueError otherwise). Default: its own.
  std::optional<ProcessGroup> process_group{};
  /// All ranks use one copy of the parameters, in shared memory, which only step() may change.
  bool shared_parameters = false;
  /// With shared_parameters: a rank that writes to one outside step() ends at once, with a line that names
  /// the parameter and the rank. Costs two system calls per step. Default: where TORCH_DISTRIBUTED_DEBUG is
  /// DETAIL.
  std::optional<bool> protect_parameters{};
};

namespace detail {

/// See FusedZeroRedundancyOptimizer.
class FusedZeroCore : public ShardedOptimizer {
 public:
  /// What lockstep::clip_grad_norm_ does to gradients that every rank has in full: scales them by max_norm /
  /// (norm + 1e-6) where that is below 1, and returns their total norm before that; the same bits. Between
  /// backward and step(), on all ranks, with the same arguments; blocks. Throws ValueError for a norm_type
  /// below 0 and, on all ranks, Error with error_if_nonfinite.
  double clip_grad_norm_(double max_norm, double norm_type = 2.0, bool error_if_nonfinite = false);
  /// The norm alone.
  double grad_norm(double norm_type = 2.0);
  ~FusedZeroCore() override;
  /// While it lives, this rank may write to shared parameters that are protected; what it writes, all see.
  class [[nodiscard]] WritableParameters {
   public:
    explicit WritableParameters(WriteProtection* protection) : protection_(protection) {
      if (protection_ != nullptr) protection_->unprotect();
    }
    WritableParameters(const WritableParameters&) = delete;
    ~WritableParameters() {
      if (protection_ != nullptr) protection_->protect();
    }

   private:
    WriteProtection* protection_;
  };
  bool shares_parameters() const { return shares_parameters_; }
  void share_weights() override;
  WritableParameters writable_parameters() { return WritableParameters(protection_.get()); }

  void has_joined() override;
  void leave_join() override;

 protected:
  FusedZeroCore(const std::shared_ptr<DdpCore>& ddp, const ParamGroups& groups,
                std::unique_ptr<torch::optim::OptimizerOptions> defaults, MakeOptimizer make,
                const FusedZeroRedundancyOptimizerOptions& options);
  const std::shared_ptr<GradientSlices>& slices() const { return slices_; }

 private:
  /// The parameters of one dtype of a group.
  struct Memory {
    at::Tensor flat;
    std::vector<std::vector<TensorPart>> parts;  // by the rank that updates them
  };
  struct Place {
    size_t ordinal;  // among all parameters
    size_t first_chunk;
    size_t memory = 0;   // which of memory_ the parameter lies in,
    int64_t offset = 0;  // and from which element on
  };
  ElementRange range_of(const at::Tensor& parameter, int rank) const;
  std::vector<std::vector<Piece>> pieces_of(int rank) const override;
  void groups_changed() override;
  void check_parameters(const DdpCore& ddp) const;
  void move_group(const torch::optim::OptimizerParamGroup& group);
  void follow_parameters();
  void step_share() override;
  void clip_share(const Clipping& clipping) override;
  double norm_of_gradients(double norm_type);
  double clip(const Clipping& clipping);
  void take_gradients();
  void drop_gradients();
  void update();

  bool shares_parameters_;
  std::unordered_map<const at::TensorImpl*, std::string> names_;
  std::unordered_set<const at::TensorImpl*> ignored_;  // by the wrapper: each rank's own
  std::unordered_map<const at::TensorImpl*, Place> places_;
  std::vector<size_t> chunks_;  // of every parameter
  size_t groups_moved_ = 0;
  std::vector<Memory> memory_;
  std::shared_ptr<GradientSlices> slices_;
  std::unique_ptr<WriteProtection> protection_;        // goes before the memory does
  std::optional<WritableParameters> writable_joined_;  // from has_joined() to leave_join()
};

/// Those that the wrapper averages.
std::vector<at::Tensor> trainable_parameters(const DdpCore& ddp);

/// Are the first arguments of a constructor of FusedZeroRedundancyOptimizer a wrapper, perhaps groups, and options?
template <class... Args>
inline constexpr bool kGivesWrapper = false;
template <is_wrapper Wrapper, class... Rest>
inline constexpr bool kGivesWrapper<Wrapper&, Rest...> =
    (std::is_base_of_v<torch::optim::OptimizerOptions, std::remove_cvref_t<Rest>> || ...);

}  // namespace detail

/// The optimizer's state and its work are divided among the ranks of one machine, by elements: during
/// backward each rank averages only its slices of every gradient, in place in shared memory; step() updates
/// those and fetches the others' parameters from the ranks that have updated them. No rank's parameters
/// change but in its own step(). Gradients and parameters have the same bits as with DistributedDataParallel
/// and `OptimizerT` alone, with clipping and without.
///
///     DistributedDataParallel ddp(model);
///     FusedZeroRedundancyOptimizer<FusedAdamW> optimizer(ddp, torch::optim::AdamWOptions(1e-3));
///     ...
///     optimizer.zero_grad();
///     loss(ddp).backward();
///     optimizer.clip_grad_norm_(1.0);
///     optimizer.step();
///
/// Between two synchronized backward passes gradients must be dropped or zeroed, by zero_grad() of this
/// optimizer or of the module (Error otherwise): of the gradients of a pass a rank has the average of its own
/// slices only, so that others could not be added to them.
///
/// Needs the "lockstep" backend; registers a communication hook, so there can be no other, and must be made
/// before the first backward pass. Every trainable parameter that the wrapper averages must be in it. After
/// backward a rank's grad() holds the average in its own slices only; elsewhere it is this rank's own
/// gradient. Parameters move into shared memory; shared_parameters become each rank's own again when the optimizer
/// goes, which it must on all ranks before any of them changes parameters by itself. Afterwards the model's gradients
/// are averaged in full, as without it. All ranks make it, and
/// call step(), clip_grad_norm_(), add_param_group() and consolidate_state_dict(), which block; they throw
/// CommError when a rank is lost. Under join() it is named beside the model. One thread at a time.
template <class OptimizerT>
class FusedZeroRedundancyOptimizer : public detail::FusedZeroCore {
  static_assert(
      !std::is_same_v<OptimizerT, detail::NoOptimizer>,
      "FusedZeroRedundancyOptimizer takes an optimizer's class: write "
      "FusedZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(ddp, torch::optim::AdamWOptions(1e-3))");
  static_assert(std::is_same_v<OptimizerT, detail::NoOptimizer> ||
                    std::is_base_of_v<torch::optim::AdamW, OptimizerT> ||
                    std::is_base_of_v<torch::optim::Adam, OptimizerT> ||
                    std::is_base_of_v<torch::optim::SGD, OptimizerT> ||
                    std::is_base_of_v<torch::optim::Adagrad, OptimizerT> ||
                    std::is_base_of_v<torch::optim::RMSprop, OptimizerT>,
                "the state of this optimizer cannot be divided by elements; use ZeroRedundancyOptimizer");

 public:
  /// `groups`: all trainable parameters of the module, in groups with options of their own. `defaults`:
  /// OptimizerT's options. Blocks. Throws ValueError for another backend than "lockstep",
  /// for a group of other ranks than the wrapper's, for a trained parameter of the module that is in no
  /// parameter group, and for one of the wrapper's parameters_and_buffers_to_ignore that is in one.
  template <class M, std::derived_from<torch::optim::OptimizerOptions> Defaults>
  FusedZeroRedundancyOptimizer(DistributedDataParallel<M>& ddp,
                               const std::vector<torch::optim::OptimizerParamGroup>& groups,
                               const Defaults& defaults,
                               const FusedZeroRedundancyOptimizerOptions& options = {})
      : FusedZeroCore(ddp.core_, groups, std::make_unique<Defaults>(defaults),
                      detail::maker<OptimizerT>(defaults), options) {
    ddp.register_comm_hook(slices(), detail::reduce_own_slices, "reduce_own_slices");
    ddp.core_->call_before_gradients([slices = slices()] { detail::note_zeroed_gradients(*slices); });
  }
  /// All trainable parameters of the module, without the wrapper's parameters_and_buffers_to_ignore.
  template <class M, std::derived_from<torch::optim::OptimizerOptions> Defaults>
  FusedZeroRedundancyOptimizer(DistributedDataParallel<M>& ddp, const Defaults& defaults,
                               const FusedZeroRedundancyOptimizerOptions& options = {})
      : FusedZeroRedundancyOptimizer(
            ddp, {torch::optim::OptimizerParamGroup(detail::trainable_parameters(*ddp.core_))}, defaults,
            options) {}
  /// For anything else: says at compile time what to write.
  template <class Given, class... Rest>
  requires(!detail::kGivesWrapper<Given, Rest...> &&
           !std::is_base_of_v<
               FusedZeroRedundancyOptimizer,
               std::remove_cvref_t<Given>>) explicit FusedZeroRedundancyOptimizer(Given&& /*given*/,
                                                                                  Rest&&... /*rest*/)
      : FusedZeroCore(nullptr, {}, nullptr, nullptr, {}) {
    static_assert(
        detail::kGivesWrapper<Given, Rest...> || std::is_same_v<OptimizerT, detail::NoOptimizer>,
        "FusedZeroRedundancyOptimizer takes the DistributedDataParallel and the optimizer's options: write "
        "FusedZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(ddp, torch::optim::AdamWOptions(1e-3))");
  }

  /// The plain optimizer over all parameters that this one stands for, with the state of the last
  /// consolidate_state_dict() and today's options. Throws Error on a rank that has none.
  const OptimizerT& state_dict() const { return static_cast<const OptimizerT&>(consolidated()); }
};

/// For one whose optimizer is not named: says at compile time what to write.
template <class Given, class... Rest>
FusedZeroRedundancyOptimizer(Given&&, Rest&&...) -> FusedZeroRedundancyOptimizer<detail::NoOptimizer>;

}  // namespace lockstep
