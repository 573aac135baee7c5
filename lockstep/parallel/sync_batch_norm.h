// BatchNorm over the batches of all ranks.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>

#include <concepts>
#include <cstdlib>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

namespace detail {

/// Exchanges what is known of the parts of a batch, where a process has several of them (LogicalRanks).
class BatchExchange {
 public:
  /// Where the part that asks has arrived: the same place in all parts before any goes on.
  struct Place {
    const void* layer;
    bool is_backward;
    bool operator==(const Place&) const = default;
  };
  virtual ~BatchExchange() = default;
  /// Counts the parts of all processes together.
  virtual int parts() const = 0;
  /// `own` of every part, in their order. Blocks.
  virtual std::vector<at::Tensor> gather(const ProcessGroup& group, Place place, const at::Tensor& own) = 0;
  /// The sum of all parts' `own`, in the order in which their gradients are added. Blocks.
  virtual at::Tensor sum(const ProcessGroup& group, Place place, const at::Tensor& own) = 0;
};

struct BatchNormAccess;

/// What convert_sync_batchnorm() takes beside a module: it tells whether it is null, leads to a module, and can be returned.
template <class M>
concept holds_module = std::is_copy_constructible_v<M> &&(
                           requires(const M& module) { module.is_empty(); } ||
                           requires(const M& module) { module == nullptr; }) &&
                       (
                           requires(const M& module) {
                             { *module.ptr() } -> std::convertible_to<torch::nn::Module&>;
                           } ||
                           requires(const M& module) {
                             { *module } -> std::convertible_to<torch::nn::Module&>;
                           });

}  // namespace detail

/// Batch normalization of [batch, channels, ...] with parameters, buffers and options of
/// torch::nn::BatchNorm1d/2d/3d (which it can replace in a checkpoint), for inputs of any number of
/// dimensions from 2. Once it has a process group, training mode takes mean and variance over the batches of
/// all ranks; their batch sizes may differ, and be 0. Then forward and backward are collective, as far as a
/// group has more than one rank. Gradients of weight and bias are this rank's own part:
/// DistributedDataParallel averages them. Not differentiable twice: the second backward throws.
class BatchNormImpl : public torch::nn::BatchNormImplBase<2, BatchNormImpl> {
 public:
  using torch::nn::BatchNormImplBase<2, BatchNormImpl>::BatchNormImplBase;
  /// float [batch, channels, ...] -> the same shape. Throws ValueError when there are not at least two values
  /// a channel, over all ranks, in training mode.
  at::Tensor forward(const at::Tensor& input);
  /// The ranks whose batches count together; std::nullopt: this rank alone. Not collective.
  void set_process_group(std::optional<ProcessGroup> group) { group_ = own_group_ = std::move(group); }
  /// As set_process_group() has set it.
  const std::optional<ProcessGroup>& process_group() const { return group_; }

 protected:
  /// Throws ValueError unless `input` is [batch, num_features, ...].
  void _check_input_dim(const at::Tensor& input) override;

 private:
  friend struct detail::BatchNormAccess;
  double update_factor();
  std::optional<ProcessGroup> group_, own_group_;
  std::weak_ptr<detail::BatchExchange> exchange_{};
};
TORCH_MODULE(BatchNorm);

namespace detail {

/// What the wrappers of a module do to its layers.
struct BatchNormAccess {
  /// `layer` works in `duplicate` of its process_group() from now on: see duplicate_sync_batchnorm_groups().
  static void use_duplicate(BatchNormImpl& layer, ProcessGroup duplicate) {
    layer.own_group_ = std::move(duplicate);
  }
  static const std::optional<ProcessGroup>& duplicate_of(const BatchNormImpl& layer) {
    return layer.own_group_;
  }
  /// Statistics are taken over the parts that `exchange` knows, as long as it lives, in place of the group's ranks.
  static void use_exchange(BatchNormImpl& layer, std::weak_ptr<BatchExchange> exchange) {
    layer.exchange_ = std::move(exchange);
  }
  /// `layer` takes over the parameters and the buffers' memory of another batch normalization: optimizers that know
  /// them stay right.
  static void share(BatchNormImpl& layer, const torch::OrderedDict<std::string, at::Tensor>& parameters,
                    const torch::OrderedDict<std::string, at::Tensor>& buffers);
};

}  // namespace detail

/// BatchNorm with a process group from the start: by default the job's.
class SyncBatchNormImpl : public BatchNormImpl {
 public:
  /// `group`: default the job's, which lockstep::init() made. Not collective.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             std::optional<ProcessGroup> group = std::nullopt);
};
TORCH_MODULE(SyncBatchNorm);

/// Makes every batch normalization in `module` synchronized, in place: lockstep::BatchNorm anywhere, and
/// torch::nn::BatchNorm1d/2d/3d that are children of a torch::nn::Sequential. Throws ValueError naming the
/// first one that it cannot convert (a typed member of a module, whose class is fixed), and then converts
/// none. `group`: default the job's. Parameters stay the same tensors, buffers the same memory.
void convert_sync_batchnorm(torch::nn::Module& module, std::optional<ProcessGroup> group = std::nullopt);
/// Takes a module holder, a std::shared_ptr to a module, or torch::nn::AnyModule, and returns it. Throws ValueError for
/// null too.
template <class M>
requires(!std::is_base_of_v<torch::nn::Module, M>) M
    convert_sync_batchnorm(const M& module, std::optional<ProcessGroup> group = std::nullopt) {
  if constexpr (!detail::holds_module<M>) {
    static_assert(
        detail::holds_module<M>,
        "convert_sync_batchnorm takes a module, a module holder (TORCH_MODULE), a std::shared_ptr to a module or an "
        "AnyModule: convert the module before you wrap it");
    std::abort();
  } else {
    if constexpr (requires { module.is_empty(); }) {
      if (module.is_empty()) throw ValueError("convert_sync_batchnorm: the module is null");
    } else {
      if (module == nullptr) throw ValueError("convert_sync_batchnorm: the module is null");
    }
    if constexpr (requires { module.ptr(); }) {
      convert_sync_batchnorm(*module.ptr(), std::move(group));
    } else {
      convert_sync_batchnorm(*module, std::move(group));
    }
    return module;
  }
}

namespace detail {
/// Gives the synchronized batch normalizations in `module` a duplicate of their process group, one for all
/// layers of one group. Called by all ranks; blocks.
void duplicate_sync_batchnorm_groups(const torch::nn::Module& module);
/// Those duplicates, one for each layer.
std::vector<ProcessGroup> list_sync_batchnorm_groups(const torch::nn::Module& module);
}  // namespace detail

}  // namespace lockstep
