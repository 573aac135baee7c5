// What a step (lockstep/step/step.h) and those who take part in it ask of each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::detail {

/// Something that a failed step must leave as it was. Every object takes part from its constructor to its destructor.
/// The calls come in the thread of the step, in the order of construction, and must start nothing collective.
class StepMember {
 public:
  StepMember();
  StepMember(const StepMember&) = delete;
  StepMember& operator=(const StepMember&) = delete;
  virtual ~StepMember();

  /// A step begins.
  virtual void begin_step() {}
  /// This rank has done its part. Here what all ranks have started for the next step may be waited for: later another
  /// rank's failure in the next step could end the wait.
  virtual void complete_step() {}
  /// It has succeeded on all ranks.
  virtual void commit_step() {}
  /// It fails here, now: weights get no gradients any more, so that an optimizer which steps all the same does nothing.
  virtual void drop_gradients() noexcept {}
  /// It has failed. Nothing is in flight any more and no other rank touches this one's memory: gradients become zero,
  /// and all else is what it was when the step began, the same on all ranks.
  virtual void fail_step() = 0;
  /// A rank was replaced by a new process (lockstep/recovery/recovery.h), after fail_step(): what this object has agreed on
  /// with the other ranks since it was made is forgotten: the new process does not have it. All groups are renewed;
  /// all ranks call it. Must start nothing collective.
  virtual void restart() {}
  /// What restart() forgets, for load_agreed() of all ranks, the new process too: all of them take a survivor's. Empty: nothing.
  /// Must not block.
  virtual std::vector<std::string> agreed() const { return {}; }
  virtual void load_agreed(const std::vector<std::string>& /*agreed*/) {}
  /// Why a rank with this object cannot be replaced, such as "PowerSGDState has an error of each rank's own"; empty: it can.
  virtual std::string heal_problem() const { return {}; }
  /// A number that changes, as good as always, when weights are written: of a few of their elements, of some that have got a
  /// gradient in this step, and of their version counters (LibTorch's optimizers leave those alone).
  virtual uint64_t probe_weights() const { return 0; }
  /// Whose ranks have its weights alike; null: it has none.
  virtual const ProcessGroup* replica_group() const { return nullptr; }
  /// Has it met a failure of another rank?
  virtual bool is_interrupted() const { return false; }
  /// Groups in which it alone works, in forward and backward: in a step all ranks come to the same operations there.
  virtual std::vector<ProcessGroup> own_groups() const { return {}; }
  /// The weights that all ranks of that group have alike, in an order that is the same on all of them.
  virtual std::vector<at::Tensor> weights() const { return {}; }
  /// What goes to the other ranks together with weights.
  virtual std::vector<at::Tensor> buffers() const { return {}; }
  /// Running statistics that are not each rank's own: all ranks have them alike at the end of a step.
  virtual std::vector<at::Tensor> common_statistics() const { return {}; }
};

/// Calls `call` with every member of this process, in the order of construction.
void for_each_step_member(const std::function<void(StepMember&)>& call);

/// What this rank alone has (running statistics of its own batches) is to be kept: an averaging backward is about to agree with
/// the other ranks that it has ended, and from then on one of them may write weights. `call` comes in the thread of the backward
/// and may throw. One at a time; empty: nothing is to be kept.
void set_before_agreement(std::function<void()> call);
void call_before_agreement();

/// What this rank alone has (the state of a communication hook) is to be kept: an averaging backward has ended here. Ends in an
/// agreement with the other ranks, where it is set on all of them; no rank writes weights before. `call` comes in the thread of
/// the backward and may throw. One at a time; empty: nothing is to be kept.
void set_after_averaging(std::function<void()> call);
void call_after_averaging();

/// An averaging backward has ended here, and nobody has used its gradients. `call` comes in the thread of the backward; it must
/// not throw, and calls no collective. One at a time; empty: nothing.
void set_after_backward(std::function<void()> call);

/// A rank died while the others agreed before an optimizer's step(). `call` tells whether this one goes on alone: it has written
/// weights in this step and has all gradients, so nobody could go back from there. `failure`: what the agreement has ended with;
/// null: nothing has failed yet, and the question is whether it would go on. In the thread of the step; it must not throw. One
/// at a time; empty: no rank does.
void set_goes_on_alone(std::function<bool(const std::exception_ptr& failure)> call);
bool goes_on_alone(const std::exception_ptr& failure);

/// Before an optimizer writes weights: in a step, waits until all ranks are here. One that calls another's step()
/// agrees once, for both.
class WeightUpdate {
 public:
  /// `name`: of the optimizer, for errors. Throws StepFailedError if a rank has failed. Blocks, in a step.
  explicit WeightUpdate(const char* name);
  /// For a rank that has joined and takes part in the others' step(): they have agreed.
  struct AgreedBefore {};
  explicit WeightUpdate(AgreedBefore agreed);
  WeightUpdate(const WeightUpdate&) = delete;
  ~WeightUpdate();
  /// skip_step() was called: do nothing.
  bool is_skipped() const { return is_skipped_; }

 private:
  bool is_skipped_ = false;
};

/// The step that this process is in.
class StepUnderWay {
 public:
  /// Null outside of steps.
  static StepUnderWay* current();

  /// Has the calling thread begun it?
  virtual bool is_of_this_thread() const = 0;
  /// Throws StepFailedError if the step is known to have failed, here or elsewhere.
  virtual void check() = 0;
  /// It fails here, now: waits of the other ranks end, and so do this rank's. `place`: for the error, such as "in the
  /// forward of Net". `cause` may be null. Does not throw.
  virtual void fail(const std::string& place, std::exception_ptr cause) noexcept = 0;
  /// It ends on all ranks without an exception; see skip_step().
  virtual void skip() = 0;
  /// Blocks until all ranks are here. Throws StepFailedError if one of them has failed. False: skip_step() was called,
  /// do nothing. Before weights are written.
  virtual bool agree() = 0;
  /// Where this rank is, for errors: "in the forward of " and "Net". `place` must live as long as the step.
  virtual void set_place(const char* place, const std::string& name) = 0;
  /// The thread of the step has waited so long for ranks that come to the same place as itself. If one of them waits for this
  /// rank elsewhere, the step fails, which ends both waits. Does not block.
  virtual void look_around(std::chrono::milliseconds waited) = 0;

 protected:
  ~StepUnderWay() = default;
  /// One at a time.
  static void set_current(StepUnderWay* step);
};

/// The steps of the others, for a rank that has no inputs left (lockstep/parallel/join.h).
class JoinedStep {
 public:
  virtual ~JoinedStep() = default;
  /// The others are in an optimizer's step(), or at the step's end. Returns false if the step has failed; everything is
  /// as it was before it then, and this object has ended. Both block.
  virtual bool meet() = 0;
  virtual bool end() = 0;
  /// This rank has met the failure in something else.
  virtual void fail(std::exception_ptr cause) = 0;
};

/// How join() gets at steps, which stand above it. Null unless the program has steps.
struct JoinedSteps {
  /// Called by all ranks of the group before some of them may miss a step. Blocks.
  void (*prepare)(const ProcessGroup& group);
  /// The step that the others are in.
  std::unique_ptr<JoinedStep> (*begin)(const ProcessGroup& group);
};
const JoinedSteps* joined_steps();
/// At the start of the program.
bool set_joined_steps(const JoinedSteps* steps);

/// What a step calls before the ranks meet, while join() goes on in this thread: it tells the ranks that have joined.
struct JoinedRanks {
  const ProcessGroup* group;
  std::function<void(bool is_end)> announce;
};
/// Returns those of the join() that goes on; null outside.
const JoinedRanks* joined_ranks();
void set_joined_ranks(const JoinedRanks* ranks);

}  // namespace lockstep::detail
