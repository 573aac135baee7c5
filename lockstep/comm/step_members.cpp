#include "lockstep/comm/step_members.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/mutex.h"

namespace lockstep::detail {
namespace {

using MemberList = std::vector<StepMember*>;

struct Members {
  base::Mutex mutex;
  // In the order of construction. Never changed, but replaced: steps go through it far more often than members come and go.
  std::shared_ptr<const MemberList> all LOCKSTEP_GUARDED_BY(mutex) = std::make_shared<MemberList>();
};

/// Never destroyed: members may be globals.
Members& members() {
  static auto* const members = new Members();
  return *members;
}

std::atomic<StepUnderWay*> current_step{nullptr};

}  // namespace

StepMember::StepMember() {
  const base::LockGuard lock(members().mutex);
  auto all = std::make_shared<MemberList>(*members().all);
  all->push_back(this);
  members().all = std::move(all);
}

StepMember::~StepMember() {
  const base::LockGuard lock(members().mutex);
  auto all = std::make_shared<MemberList>(*members().all);
  std::erase(*all, this);
  members().all = std::move(all);
}

void for_each_step_member(const std::function<void(StepMember&)>& call) {
  std::shared_ptr<const MemberList> all;
  {
    const base::LockGuard lock(members().mutex);
    all = members().all;
  }
  for (StepMember* const member : *all) call(*member);
}

namespace {

/// Never destroyed, as the members.
std::function<void()>& before_agreement() {
  static auto* const call = new std::function<void()>();
  return *call;
}

/// Never destroyed, either.
std::function<void()>& after_averaging() {
  static auto* const call = new std::function<void()>();
  return *call;
}

/// Never destroyed, either.
std::function<void()>& after_backward() {
  static auto* const call = new std::function<void()>();
  return *call;
}

/// Never destroyed, either.
std::function<bool(const std::exception_ptr&)>& alone() {
  static auto* const call = new std::function<bool(const std::exception_ptr&)>();
  return *call;
}

thread_local int updates = 0;  // under way

}  // namespace

void set_before_agreement(std::function<void()> call) { before_agreement() = std::move(call); }

void call_before_agreement() {
  if (before_agreement()) before_agreement()();
}

void set_after_averaging(std::function<void()> call) { after_averaging() = std::move(call); }

void set_after_backward(std::function<void()> call) { after_backward() = std::move(call); }

void call_after_averaging() {
  if (after_backward()) after_backward()();
  if (!after_averaging()) return;
  after_averaging()();
  if (auto* const step = StepUnderWay::current()) step->agree();
}

void set_goes_on_alone(std::function<bool(const std::exception_ptr&)> call) { alone() = std::move(call); }

bool goes_on_alone(const std::exception_ptr& failure) { return alone() && alone()(failure); }

WeightUpdate::WeightUpdate(const char* name) {
  if (updates == 0) {
    // Another thread's models are its own concern.
    if (StepUnderWay* const step = StepUnderWay::current(); step != nullptr && step->is_of_this_thread()) {
      step->set_place("in the step() of ", name);
      is_skipped_ = !step->agree();
    }
  }
  ++updates;
}

WeightUpdate::WeightUpdate(AgreedBefore /*agreed*/) { ++updates; }

WeightUpdate::~WeightUpdate() {
  if (--updates > 0) return;
  StepUnderWay* const step = StepUnderWay::current();
  if (step != nullptr && step->is_of_this_thread()) step->set_place("after an optimizer's step()", "");
}

StepUnderWay* StepUnderWay::current() { return current_step.load(std::memory_order_acquire); }

void StepUnderWay::set_current(StepUnderWay* step) { current_step.store(step, std::memory_order_release); }

namespace {

const JoinedSteps* the_joined_steps = nullptr;
thread_local const JoinedRanks* the_joined_ranks = nullptr;

}  // namespace

const JoinedSteps* joined_steps() { return the_joined_steps; }

bool set_joined_steps(const JoinedSteps* steps) {
  the_joined_steps = steps;
  return true;
}

const JoinedRanks* joined_ranks() { return the_joined_ranks; }

void set_joined_ranks(const JoinedRanks* ranks) { the_joined_ranks = ranks; }

}  // namespace lockstep::detail
