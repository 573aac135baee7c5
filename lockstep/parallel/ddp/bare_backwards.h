// Backwards that no forward of a DistributedDataParallel can have caused: `ddp.module()->forward(x)` runs the bare module, and
// nothing would be averaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace lockstep::detail {

/// Belongs to one wrapper. A penalty on the weights has a backward of its own too, and a forward may follow. A step is refused at
/// its end, and outside of steps only the second such backward is told. Parameters may belong to several wrappers: a forward of
/// any of them may have caused the backward.
class BareBackwards {
 public:
  /// `module`: its type's name, for messages.
  explicit BareBackwards(std::string module) : module_(std::move(module)) {}

  /// A step begins.
  void begin_step();
  /// The wrapper runs a forward with gradients enabled.
  void note_forward() { ++forwards_; }
  /// Has a forward come since the step began; outside of steps: since the wrapper was made?
  bool has_run() const;
  /// A gradient has come that is not averaged, to the `number`-th parameter, and there was no forward.
  void note_gradient(size_t number, const std::string& parameter);
  /// Throws Error if gradients came in this step, and no forward. `is_of_another`: does that parameter belong to another
  /// wrapper, too, which has_run()?
  void check_step(const std::function<bool(size_t number)>& is_of_another) const;

 private:
  std::string describe(const std::string& parameter) const;

  std::string module_;
  int64_t forwards_ = 0, at_step_ = 0;
  std::map<size_t, std::string> in_step_{};  // by number: the parameters that got a gradient in this step
  int last_ = -1, outside_steps_ = 0;  // before any forward: the graph task of the last backward; how many
};

}  // namespace lockstep::detail
