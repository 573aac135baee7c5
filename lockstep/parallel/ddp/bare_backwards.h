// Backwards that no forward of a DistributedDataParallel can have caused: `ddp.module()->forward(x)` runs the bare module, and
// nothing would be averaged.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace lockstep::detail {

/// Belongs to one wrapper. A penalty on the weights has a backward of its own too, and a forward may follow. A step is refused at
/// its end, and outside of steps only the second such backward is told.
class BareBackwards {
 public:
  /// `module`: its type's name, for messages.
  explicit BareBackwards(std::string module) : module_(std::move(module)) {}

  /// A step begins.
  void begin_step();
  /// The wrapper runs a forward with gradients enabled.
  void note_forward() { ++forwards_; }
  /// No forward has come since the step began, or since the wrapper was made.
  bool may_be_bare() const { return forwards_ == at_step_; }
  /// A gradient has come that is not averaged, to `parameter`, and may_be_bare().
  void note_gradient(const std::string& parameter);
  /// Throws Error if gradients came in this step, and no forward.
  void check_step() const;

 private:
  std::string describe(const std::string& parameter) const;

  std::string module_;
  int64_t forwards_ = 0, at_step_ = 0;
  std::string in_step_;                // the first parameter that got a gradient in this step; empty: none
  int last_ = -1, outside_steps_ = 0;  // before any forward: the graph task of the last backward; how many
};

}  // namespace lockstep::detail
