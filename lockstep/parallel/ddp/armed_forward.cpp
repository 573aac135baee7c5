#include "lockstep/parallel/ddp/armed_forward.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/base/mutex.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep {

/// The forwards of this process that wait for a backward.
struct ArmedForwards {
  /// Never destroyed: outputs may be globals.
  static ArmedForwards& all() {
    static auto* const all = new ArmedForwards();
    return *all;
  }
  /// Takes out those that `is_meant` means; returns the reducer of the first.
  template <class IsMeant>
  std::shared_ptr<Reducer> take(const IsMeant& is_meant) {
    const base::LockGuard lock(mutex);
    std::shared_ptr<Reducer> first;
    std::erase_if(waiting, [&](ArmedForward* forward) {
      if (!is_meant(*forward)) return false;
      if (!first) first = forward->reducer_;
      forward->waits_.store(false, std::memory_order_relaxed);
      return true;
    });
    return first;
  }
  static std::thread::id thread_of(const ArmedForward& forward) { return forward.thread_; }

  base::Mutex mutex;
  std::vector<ArmedForward*> waiting LOCKSTEP_GUARDED_BY(mutex);
};

namespace {

void fail(Reducer& reducer) noexcept {
  try {
    reducer.fail_forward("between forward and backward of ", nullptr);
  } catch (const std::exception& error) {  // recover() meets it again
    log::debug(std::string("DistributedDataParallel: outputs that an exception took away: ") + error.what());
  }
}

}  // namespace

ArmedForward::ArmedForward(std::shared_ptr<Reducer> reducer, int failures)
    : reducer_(std::move(reducer)), failures_(failures), exceptions_(std::uncaught_exceptions()) {
  ArmedForwards& all = ArmedForwards::all();
  const base::LockGuard lock(all.mutex);
  all.waiting.push_back(this);
}

ArmedForward::~ArmedForward() {
  if (!waits_.load(std::memory_order_relaxed)) return;
  const bool waited =
      ArmedForwards::all().take([&](const ArmedForward& other) { return &other == this; }) != nullptr;
  const bool is_by_exception =
      thread_ == std::this_thread::get_id() && std::uncaught_exceptions() > exceptions_;
  if (waited && is_by_exception) fail(*reducer_);
}

void ArmedForward::reach() {
  if (!waits_.load(std::memory_order_relaxed)) return;
  ArmedForwards::all().take([&](const ArmedForward& other) { return &other == this; });
}

void ArmedForward::forget(const Reducer* reducer) {
  ArmedForwards::all().take([&](const ArmedForward& forward) { return forward.reducer_.get() == reducer; });
}

void ArmedForward::fail_all_of_thread() noexcept {
  const auto take_first = [] {
    const Reducer* first = nullptr;
    return ArmedForwards::all().take([&](const ArmedForward& forward) {
      if (ArmedForwards::thread_of(forward) != std::this_thread::get_id()) return false;
      if (first == nullptr) first = &forward.reducer();
      return first == &forward.reducer();
    });
  };
  while (const auto reducer = take_first()) fail(*reducer);
}

}  // namespace lockstep
