// What belongs to the state of a training, as Recovery hands it over to a new process.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/state/state_dict.h"

namespace lockstep::detail {

/// A thing with a name; one of the three.
struct RecoveryItem {
  std::string name;
  torch::nn::Module* module = nullptr;
  torch::optim::Optimizer* optimizer = nullptr;
  std::function<StateDict()> save{};
  std::function<void(const StateDict&)> load{};
};

/// One thread at a time.
class RecoveryItems {
 public:
  /// Throws ValueError for a name that is there twice, or an item that is there twice.
  explicit RecoveryItems(std::vector<RecoveryItem> items);

  /// Why this rank could not hand it over, or get it; empty: it can.
  std::string problem() const;
  /// Has it something that tells where in its data a program is?
  bool has_position() const;
  /// Are all of them parameters of its models?
  bool have_all(const std::vector<at::Tensor>& weights) const;
  std::vector<std::string> names() const;
  std::vector<torch::optim::Optimizer*> optimizers() const;

  /// No parameter has a gradient.
  void drop_gradients() const;
  /// What restore() returns to is what holds now.
  void keep();
  /// Options of optimizers, and what is neither model nor optimizer, are what they were at keep().
  void restore();
  /// Have weights or the state of an optimizer been written since keep(), as good as certainly?
  bool are_written() const { return probe() != probe_; }

  /// A hash of each item, in the order of names(): the same on all ranks.
  std::vector<uint64_t> hashes() const;
  /// All ranks get what rank `donor` has. Called by all ranks of `group`; blocks.
  void hand_over(const ProcessGroup& group, int donor);

 private:
  struct Kept {
    StateDict state;                                                       // of a thing
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;  // of an optimizer
  };
  uint64_t probe() const;
  std::vector<RecoveryItem> items_;
  std::vector<at::Tensor> parameters_;  // of models, each once
  std::vector<Kept> kept_;
  uint64_t probe_ = 0;
};

}  // namespace lockstep::detail
