// Whether a step has written weights, without a copy of them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "lockstep/parallel/gradient_places.h"

namespace lockstep::detail {

/// Looks at a few elements of each weight and at what optimizers count. So what it says is as good as certain. One thread at a time.
class WeightProbe {
 public:
  WeightProbe(std::vector<at::Tensor> parameters, std::vector<torch::optim::Optimizer*> optimizers);

  /// What holds now is not written.
  void keep();
  /// An averaging backward has ended. Of the weights of optimizers without a state some elements that have a gradient are looked
  /// at, too; see GradientPlaces.
  void note_gradients();
  /// Have weights or the state of an optimizer been written since keep()?
  bool are_written() const { return numbers() != kept_ || is_noted_written(/*with_divided=*/true); }
  /// ... others than those that divided optimizers write.
  bool are_whole_written() const {
    return numbers().whole != kept_.whole || is_noted_written(/*with_divided=*/false);
  }
  /// Is note_gradients() of any use?
  bool needs_gradients() const { return !stateless_.empty(); }

 private:
  /// Numbers that change with the weights and the state of their optimizers.
  struct Numbers {
    uint64_t divided = 0;  ///< of those that divided optimizers write
    uint64_t whole = 0;    ///< of all others
    bool operator==(const Numbers&) const = default;
  };
  Numbers numbers() const;
  bool is_divided(const at::Tensor& parameter) const {
    return divided_.contains(parameter.unsafeGetTensorImpl());
  }
  bool is_noted_written(bool with_divided) const;

  std::vector<at::Tensor> parameters_;
  std::vector<torch::optim::Optimizer*> optimizers_;
  std::unordered_set<const at::TensorImpl*> divided_{};  // parameters of divided optimizers
  std::vector<at::Tensor> stateless_{};                  // of optimizers that may have no state
  std::vector<GradientPlaces> noted_{};                  // one for each of them
  Numbers kept_{};
};

}  // namespace lockstep::detail
