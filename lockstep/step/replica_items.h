// What the ranks' replicas consist of: a list of named tensors, numbers and texts.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lockstep/state/state_dict.h"

namespace lockstep::detail {

/// Something that all ranks must have alike.
struct ReplicaItem {
  std::string name;         ///< as an error names it: "parameter fc.weight"; no other item's
  std::string description;  ///< dtype, shape and so on; of a number or text: its value
  at::Tensor contents;      ///< dense; undefined: the description says all
};

/// What belongs to the replica of a rank. Tensors share memory with what was added. One thread at a time.
class ReplicaItems {
 public:
  /// The parameters and buffers of `module`, each tensor once, without those named in `ignored`.
  /// compare_buffers false: of buffers only dtype and shape. So it is always with the running statistics of a
  /// normalization over this rank's batch alone, which differ between ranks by design.
  void add_module(const torch::nn::Module& module, const std::set<std::string>& ignored,
                  bool compare_buffers);
  /// Options of the parameter groups and, unless it is divided among the ranks, the state. Parameters have their names if
  /// their module was added before. Throws ValueError for state or options of a class that cannot be written to an archive;
  /// `skips_unknown`: leaves them out instead.
  void add_optimizer(const torch::optim::Optimizer& optimizer, bool skips_unknown = false);
  /// The tensors of `average` that are named as a parameter, or as a buffer whose values are compared.
  void add_average(const StateDict& average);

  const std::vector<ReplicaItem>& all() const { return items_; }

 private:
  void add_tensor(std::string name, const at::Tensor& tensor, std::string more = "",
                  bool has_contents = true);
  void add_text(std::string name, std::string text);
  void add_options(const torch::optim::OptimizerOptions& options, const std::string& suffix,
                   bool skips_unknown);
  void add_state(const torch::optim::OptimizerParamState& state, const std::string& suffix,
                 bool skips_unknown);
  std::string name_of(const at::Tensor& parameter, size_t group, size_t number) const;

  std::vector<ReplicaItem> items_{};
  std::unordered_map<const at::TensorImpl*, std::string> names_{};  // of parameters
  std::unordered_set<const at::TensorImpl*> ignored_{};             // parameters
  std::set<std::string> compared_{};                                // names of parameters and buffers
  int optimizers_ = 0;
};

/// The running statistics of normalizations over this rank's batches alone, in an order that is the same on all ranks.
std::vector<at::Tensor> list_own_statistics(const torch::nn::Module& module);
/// The contents as the ranks compare them: contiguous, on the CPU, bits as they are.
at::Tensor comparable(const at::Tensor& contents);
/// Hashes contents; 0 for an undefined tensor.
uint64_t hash_of_contents(const at::Tensor& contents);

}  // namespace lockstep::detail
