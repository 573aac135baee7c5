// Do all ranks still have the same weights, buffers and optimizer state?
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"

namespace lockstep {

/// The ranks' replicas are not the same. All ranks throw it, with one message. The process groups stay usable.
class ReplicasDifferError : public Error {
 public:
  /// See the members.
  ReplicasDifferError(const std::string& message, std::string tensor, std::vector<int> ranks)
      : Error(message), tensor_(std::move(tensor)), ranks_(std::move(ranks)) {}
  /// The first thing that differs: "parameter fc.weight", "buffer mask", "optimizer state momentum_buffer of fc.weight" or
  /// "optimizer option lr of parameter group 0".
  const std::string& tensor() const { return tensor_; }
  /// Ranks, within the group, that differ in it from most ranks (if no rank has a majority, from the lowest of the ranks that
  /// agree with most), in order.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::string tensor_;
  std::vector<int> ranks_;
};

/// Options of check_replicas().
struct CheckReplicasOptions {
  std::string place{};  ///< where the program is, for the error: "after step 300"
  /// false: of buffers only dtype and shape are compared, for modules whose forward writes into them what it sees in its
  /// own batch. Default: true; false for a DistributedDataParallel with broadcast_buffers = false, whose buffers are each
  /// rank's own.
  std::optional<bool> compare_buffers{};
  /// Names that stay each rank's own, with their state in the optimizer. A DistributedDataParallel's are left out anyway.
  std::vector<std::string> parameters_and_buffers_to_ignore{};
  /// The ranks that compare. Default: those of the DistributedDataParallel; for a module those of lockstep::init().
  std::optional<ProcessGroup> process_group{};
};

namespace detail {

/// What a wrapper tells check_replicas().
struct ReplicaOfWrapper {
  template <class M>
  explicit ReplicaOfWrapper(const DistributedDataParallel<M>& ddp) : core(*ddp.core_) {}
  const DdpCore& core;
};

using ConstOptimizers = std::vector<const torch::optim::Optimizer*>;
void check_wrapper(const ReplicaOfWrapper& wrapper, const ConstOptimizers& optimizers,
                   CheckReplicasOptions options);

}  // namespace detail

/// Compares what every rank has: parameters, frozen ones too, with their requires_grad; buffers; the parameter groups' options
/// and the state of `optimizer`. Each rank hashes its own (XXH3 of the bits: NaNs and -0.0 count as they are written), and
/// the ranks exchange 16 bytes. If they are not alike, throws ReplicasDifferError on all ranks, with the name of the first
/// thing that differs, the ranks, both values, and what to do.
///
///     lockstep::check_replicas(ddp, optimizer, {.place = "after the load"});
///
/// Called by all ranks, between steps; blocks. Dtypes, shapes, names and what exists are compared too; strides and devices
/// are not. Error on all ranks in a forward or backward of mixed_precision, where parameters are in low precision.
///
/// Not compared, since each rank has its own by design: the running statistics of a normalization over one rank's batch
/// (BatchNorm, InstanceNorm; those of SyncBatchNorm are compared), apart from dtype and shape; the state of an optimizer that is
/// divided among the ranks (its options and the parameters are compared); parameters_and_buffers_to_ignore; gradients.
/// Optimizers of classes of your own are compared by what their state and options write to an archive: ValueError on all ranks if
/// they have no serialize().
template <class M>
void check_replicas(const DistributedDataParallel<M>& ddp, const torch::optim::Optimizer& optimizer,
                    CheckReplicasOptions options = {}) {
  detail::check_wrapper(detail::ReplicaOfWrapper(ddp), {&optimizer}, std::move(options));
}
/// With several optimizers, or none: `check_replicas(ddp, {&first, &second})`.
template <class M>
void check_replicas(const DistributedDataParallel<M>& ddp,
                    const std::vector<const torch::optim::Optimizer*>& optimizers = {},
                    CheckReplicasOptions options = {}) {
  detail::check_wrapper(detail::ReplicaOfWrapper(ddp), optimizers, std::move(options));
}
/// Compares a module without a wrapper: `check_replicas(*model, optimizer, {.process_group = group})`.
void check_replicas(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer,
                    CheckReplicasOptions options = {});
/// With several optimizers, or none.
void check_replicas(const torch::nn::Module& module,
                    const std::vector<const torch::optim::Optimizer*>& optimizers = {},
                    CheckReplicasOptions options = {});

}  // namespace lockstep
