// What a logical rank has of its own while it takes turns with others of its process.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <vector>

#include "lockstep/parallel/ddp/ddp_core.h"

namespace lockstep {

/// The state that a process has once and each logical rank needs for itself: the module's gradients and buffers, torch's
/// default generator, and the wrapper's forward under way. One of all a process's states is in place at a time. What
/// a backward checks, the buffers' versions, is each one's too. Moves pointers; copies the generator alone.
class RankState {
 public:
  /// `keeps_memory`: the buffers' own memory is this one's; else copies of what it holds now.
  RankState(detail::DdpCore& core, bool keeps_memory);
  /// Puts it in place.
  void enter();
  /// Takes it out, after which the module has no gradients.
  void leave();

 private:
  detail::DdpCore* core_;
  std::vector<at::Tensor> gradients_, buffers_;
  at::Tensor random_{};
  detail::DdpCore::Forward forward_{};
};

/// While it lives, states may come and go; then the buffers have the memory that they had before, and their versions.
class BuffersStay {
 public:
  explicit BuffersStay(const std::vector<at::Tensor>& buffers);
  ~BuffersStay();
  BuffersStay(const BuffersStay&) = delete;
  BuffersStay& operator=(const BuffersStay&) = delete;

 private:
  const std::vector<at::Tensor>& buffers_;
  std::vector<at::Tensor> memory_;
  std::vector<c10::VariableVersion> versions_;
};

}  // namespace lockstep
