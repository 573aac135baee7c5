// A step as one unit of failure: it succeeds on all ranks, or it fails on all of them.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

namespace detail {
struct JoinedSteps;
}

/// Options of step().
struct StepOptions {
  /// Optimizers of LibTorch's own whose step() the step calls. They cannot ask the other ranks before they write weights.
  /// If a step fails when some ranks have written and others not, those get the state of the lowest rank that has not: its
  /// weights, its buffers and the state of these optimizers. Without the list their weights differ then, and every further
  /// step throws Error until they have been made equal. Optimizers of Lockstep need not be named, unless one of LibTorch's
  /// updates other weights of the same model.
  std::vector<torch::optim::Optimizer*> optimizers{};
};

/// Runs `body` as one step of all ranks of `group`, which they all call: it reads a batch, goes forward and backward, once
/// or several times, through one or several DistributedDataParallel, and lets optimizers step.
///
///     lockstep::step(world, [&] {
///       optimizer.zero_grad();
///       loss_of(ddp(next_batch())).backward();
///       optimizer.step();
///     });
///
/// An exception that leaves `body` on any rank, and one that ends a forward or a backward inside of it, fails the step on
/// all ranks: whatever the others wait for ends at once, and each rank gets a StepFailedError that names the rank that
/// failed, where it was, and its error. On that rank its own exception is nested (std::rethrow_if_nested). Afterwards
/// gradients are zero on all ranks, also what earlier micro-batches of the step had added up; buffers of wrapped modules
/// (running statistics), hooks and reducers are what they were before the step; all process groups work. Operations that
/// were in flight are lost: their handles throw.
///
/// Weights: the ranks agree at the end of each averaging backward, and our optimizers once more before they write. So a
/// failure before that leaves the weights of all ranks alone. A failure after it leaves all ranks with the updated
/// weights. LibTorch's optimizers: see StepOptions.
///
/// Random generators are left alone. A step inside a step is a part of it. Process groups cannot be made inside of steps.
/// A rank that leaves out a forward, backward or collective that the others make fails the step, too.
/// Blocks until all ranks have ended the step. True: it has succeeded; false: a rank has called skip_step(). Throws
/// StepFailedError; CommError if a rank is lost or does not come within the group's timeout. One thread at a time.
bool step(const ProcessGroup& group, const std::function<void()>& body, StepOptions options = {});

/// The step that is under way fails on all ranks, without an exception: step() returns false everywhere. Optimizers of
/// Lockstep do nothing until it has ended. For a body's `return lockstep::skip_step();`. Throws Error outside of steps.
void skip_step();

/// step() for those who have no body at hand:
///
///     lockstep::Step step(world);
///     ...
///     step.commit();
///
/// One at a time; not inside of step(). A Step that goes away without commit(), as when an exception leaves its scope, has
/// failed on all ranks; its destructor blocks until they know.
class [[nodiscard]] Step {
 public:
  /// Called by all ranks of `group`. Blocks for the first step of a group.
  explicit Step(const ProcessGroup& group, StepOptions options = {});
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step();
  /// Ends the step; returns and throws what step() does.
  bool commit();

 private:
  class UnderWay;
  class Joined;
  static const detail::JoinedSteps kJoinedSteps;
  static const bool joins;
  friend bool step(const ProcessGroup& group, const std::function<void()>& body, StepOptions options);
  std::unique_ptr<UnderWay> under_way_;
};

}  // namespace lockstep
