// What runs the forward and backward passes of a step: the module alone, or DistributedDataParallel.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/parallel/logical/logical_ranks.h"
#include "lockstep/parallel/module_call.h"
#include "lockstep/trainer/loss.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// The user's module as compute_loss gets it: called, it runs the module's forward, through
/// DistributedDataParallel where there are several ranks. `M`: as DistributedDataParallel's.
template <class M>
class TrainedModel {
 public:
  TrainedModel(M module, const std::optional<DistributedDataParallelOptions>& ddp)
      : module_(std::move(module)) {
    if (ddp) ddp_.emplace(module_, *ddp);
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    if constexpr (detail::verify_call<M, Args...>()) {
      if (ddp_) return (*ddp_)(std::forward<Args>(args)...);
      if constexpr (std::is_same_v<M, torch::nn::AnyModule>) {
        return module_.forward(std::forward<Args>(args)...);
      } else {
        return module_->forward(std::forward<Args>(args)...);
      }
    } else {
      return at::Tensor();  // so that what is done with the result is no further error
    }
  }
  /// What a call does, as DistributedDataParallel has it.
  template <class... Args>
  auto forward(Args&&... args) {
    return (*this)(std::forward<Args>(args)...);
  }
  /// This, so that net->forward(x), as it is written for a holder, averages too. The module's own members: net.module()->layer.
  TrainedModel* operator->() { return this; }
  M& module() { return module_; }
  bool is_training() const { return pointer()->is_training(); }
  std::vector<at::Tensor> parameters() const { return lockstep::parameters(module_); }
  DistributedDataParallel<M>* ddp() { return ddp_ ? &*ddp_ : nullptr; }
  auto pointer() const {
    if constexpr (requires { module_.ptr(); }) {
      return module_.ptr();
    } else {
      return module_;
    }
  }

 private:
  M module_;
  std::optional<DistributedDataParallel<M>> ddp_{};
};

namespace detail {

/// One process's part in a step. Another way to run steps (replicas on several devices) is another engine.
class StepEngine {
 public:
  virtual ~StepEngine() = default;
  virtual torch::nn::Module& module() = 0;
  /// With gradients in a training step, without in an evaluation.
  virtual Loss compute_loss(const Batch& batch) = 0;
  virtual bool has_forward() const = 0;
  /// The model's outputs for a batch without labels.
  virtual at::Tensor forward(const Batch& batch) = 0;
  /// While the result lives, backward leaves gradients on this rank.
  virtual std::shared_ptr<void> no_sync() = 0;
  /// Backward divides gradients by this: averaging, where a sum is wanted.
  virtual double divisor() const = 0;
  /// What runs the passes of a step in the place of no_sync(), where there are logical ranks; else null.
  virtual LogicalRanks* logical_ranks() = 0;
};

/// Among how many ranks samples are divided: the logical ones, or without them those of `group`.
int data_ranks(StepEngine& engine, const ProcessGroup& group);
/// Those of this process, in order.
std::vector<int> own_data_ranks(StepEngine& engine, const ProcessGroup& group);
/// Sums `tensor`, in place, over the processes, each of which has the tree_sum() of what its own ranks have found. Called by
/// all ranks; blocks. Throws CommError.
void all_reduce_data_ranks(StepEngine& engine, const ProcessGroup& group, const at::Tensor& tensor);

/// Where the module's parameters are; the CPU for a module without any.
at::Device device_of(const torch::nn::Module& module);

template <class M>
class ModuleEngine : public StepEngine {
 public:
  using ComputeLoss = std::function<Loss(TrainedModel<M>&, const Batch&)>;
  using Forward = std::function<at::Tensor(TrainedModel<M>&, const Batch&)>;

  ModuleEngine(M module, ComputeLoss compute_loss, Forward forward, const ProcessGroup& group,
               const std::optional<DistributedDataParallelOptions>& ddp, LogicalRanksOptions logical)
      : model_(std::move(module), ddp),
        module_(model_.pointer()),
        device_(device_of(*module_)),
        compute_loss_(std::move(compute_loss)),
        forward_(std::move(forward)),
        divisor_(ddp ? group.size() : 1) {
    if (logical.size == 0 || !ddp) return;
    logical_ranks_.emplace(*model_.ddp(), logical);
    divisor_ = logical.size;
  }

  torch::nn::Module& module() override { return *module_; }
  Loss compute_loss(const Batch& batch) override { return compute_loss_(model_, here(batch)); }
  bool has_forward() const override { return static_cast<bool>(forward_); }
  at::Tensor forward(const Batch& batch) override { return forward_(model_, here(batch)); }
  std::shared_ptr<void> no_sync() override {
    if (model_.ddp() == nullptr) return nullptr;
    return std::shared_ptr<void>(new auto(model_.ddp()->no_sync()));
  }
  double divisor() const override { return divisor_; }
  LogicalRanks* logical_ranks() override { return logical_ranks_ ? &*logical_ranks_ : nullptr; }

 private:
  Batch here(const Batch& batch) const { return device_.is_cpu() ? batch : batch.to(device_); }

  TrainedModel<M> model_;
  std::shared_ptr<torch::nn::Module> module_;
  at::Device device_;
  ComputeLoss compute_loss_;
  Forward forward_;
  double divisor_;
  std::optional<LogicalRanks> logical_ranks_{};
};

/// How `arguments` want their DistributedDataParallel; nothing where there is one rank and no logical ones, or
/// nothing to train. Then parameters and buffers of rank 0 have been copied to all. Called by all ranks; blocks.
std::optional<DistributedDataParallelOptions> ddp_options(const TrainingArguments& arguments,
                                                          const ProcessGroup& group, bool trains);

/// compute_loss where the user gives forward alone: cross entropy of the outputs and the tensor "label" or
/// "labels".
Loss default_loss(const at::Tensor& outputs, const Batch& batch, double label_smoothing);
/// The name of the batch's labels; empty without any.
std::string label_name(const Batch& batch);

/// Throws ValueError for arguments and options that cannot work together.
void check_trainer(const TrainingArguments& arguments, bool has_compute_loss, bool has_forward,
                   const Dataset& train_dataset, const Dataset& eval_dataset);

}  // namespace detail
}  // namespace lockstep
