// A synchronized forward whose backward is still to come.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

namespace lockstep {

class Reducer;

/// What the outputs of one synchronized forward share, until the last of them has gone. If that happens while an
/// exception unwinds the thread's stack, and no backward has reached one of them, this rank has left the step: the
/// others go on to a backward that this rank never runs. Outputs that go without an exception are no step.
class ArmedForward {
 public:
  /// In the thread of the forward. `failures`: how often the reducer has failed before.
  ArmedForward(std::shared_ptr<Reducer> reducer, int failures);
  ArmedForward(const ArmedForward&) = delete;
  ~ArmedForward();

  /// A backward that averages has reached an output.
  void reach();
  /// Its reducer then had failed as often as it has now, or this forward is of a step that has failed since.
  int failures() const { return failures_; }
  Reducer& reducer() const { return *reducer_; }

  /// No forward of `reducer` waits for its backward any more.
  static void forget(const Reducer* reducer);
  /// An exception in this thread has ended a forward or a backward: no backward reaches the other forwards of the
  /// thread either.
  static void fail_all_of_thread() noexcept;

 private:
  friend struct ArmedForwards;

  std::shared_ptr<Reducer> reducer_;
  int failures_;
  int exceptions_;  // under way in the thread when the forward ended
  std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> waits_{true};
};

}  // namespace lockstep
