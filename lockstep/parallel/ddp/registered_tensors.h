// Has a program changed what its module consists of?
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep::detail {

/// The parameters, buffers and submodules that a module and its submodules have registered, as of the last look. One
/// thread at a time.
class RegisteredTensors {
 public:
  /// Looks at `module` and all below it, which it keeps.
  explicit RegisteredTensors(std::shared_ptr<torch::nn::Module> module);
  /// Has something been registered, replaced or removed since the last look, or has a buffer another dtype or shape? The
  /// next look compares with what is there now. Some nanoseconds for each tensor and module.
  bool take_change();
  /// Works like take_change(), but the next look compares with the same as this one.
  bool has_changed() const;

 private:
  struct Buffer {
    at::Tensor tensor;
    at::ScalarType dtype = at::ScalarType::Undefined;
    std::vector<int64_t> sizes;
  };
  struct Node {
    std::shared_ptr<torch::nn::Module> module;
    size_t parameters, buffers, children;  // how many
  };
  void look();
  void look_at(const std::shared_ptr<torch::nn::Module>& module);

  // All modules, depth first, and what they have registered. All are kept, so that no new one can lie in an old one's place.
  std::vector<Node> nodes_;
  std::vector<at::Tensor> parameters_;
  std::vector<Buffer> buffers_;
  std::vector<torch::nn::Module*> children_;
};

}  // namespace lockstep::detail
