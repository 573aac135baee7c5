// How many forwards there were, for backward_passes_per_step.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace lockstep {

/// A forward whose outputs die without an exception and without a backward is no longer counted: one rank may validate
/// alone. One thread at a time; outputs may die in any.
class CountedForwards {
 public:
  int64_t count() const { return count_->load(std::memory_order_relaxed); }
  /// Goes on from there. Forwards whose outputs still live stay counted.
  void set(int64_t count) { count_ = std::make_shared<Count>(count); }
  /// A forward begins.
  void add() { count_->fetch_add(1, std::memory_order_relaxed); }
  /// It has ended with `outputs`. If none of them can lead to a backward, it stays counted.
  void follow(const std::vector<at::Tensor>& outputs) const;

 private:
  using Count = std::atomic<int64_t>;
  class Forward;
  class Reached;

  std::shared_ptr<Count> count_ = std::make_shared<Count>(0);
};

}  // namespace lockstep
