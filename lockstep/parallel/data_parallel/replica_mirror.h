// The replicas' modules: the others follow the first one, which is the user's.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/parallel/data_parallel/replica_gradients.h"
#include "lockstep/parallel/data_parallel/replica_places.h"

namespace lockstep::detail {

/// What `replica` must have in common with `module`; ValueError naming the first parameter or buffer whose name,
/// shape or dtype differs.
void check_replica(const torch::nn::Module& module, const torch::nn::Module& replica);
/// Gives a parameter the memory of another; requires_grad too.
void share_memory(const at::Tensor& parameter, at::Tensor& with);
/// A module's copy, with a message that says what to do where it has no clone().
std::shared_ptr<torch::nn::Module> clone_module(const torch::nn::Module& module);
/// Runs `make`, after which torch's default generator is what it was before.
void keep_random_state(const std::function<void()>& make);

/// One thread at a time, except that each replica's thread may use what is its own.
class ReplicaMirror {
 public:
  /// Brings the modules to their places. Throws ValueError for modules that differ, or that are not to be replicated.
  ReplicaMirror(std::vector<std::shared_ptr<torch::nn::Module>> modules, ReplicaPlaces places);

  const ReplicaPlaces& places() const { return places_; }
  /// [replica][parameter]: each tensor once.
  const std::vector<std::vector<at::Tensor>>& parameters() const { return parameters_; }
  /// By replica; none before the first follow_module().
  const std::vector<std::unique_ptr<ReplicaGradients>>& gradients() const { return gradients_; }
  at::Generator& generator(size_t replica) { return generators_[replica]; }

  /// Replicas take over what the user has done to the module.
  void follow_module();
  /// In training mode: each replica's random stream for the forward to come.
  void seed_streams();
  /// Does the backward under way compute gradients of the parameters? torch::autograd::grad() and backward(inputs)
  /// compute those of some tensors alone.
  bool wants_gradients() const;
  /// Where the sums of the trainable parameters' gradients go if a DistributedDataParallel averages one of them: into the
  /// graph of the caller, so that it sees a single gradient of each. Empty otherwise.
  std::vector<torch::autograd::Edge> wrapper_edges() const;
  /// The numbers of the parameters that those belong to.
  std::vector<size_t> trainable() const;

 private:
  bool follow_parameters(size_t replica);
  void follow_buffers(size_t replica);
  void lay_out();

  ReplicaPlaces places_;
  std::vector<std::vector<std::shared_ptr<torch::nn::Module>>> submodules_;  // [replica], in one order
  std::vector<std::vector<at::Tensor>> parameters_, buffers_;                // [replica]
  std::vector<at::Generator> generators_;
  std::vector<std::unique_ptr<ReplicaGradients>> gradients_;
};

}  // namespace lockstep::detail
