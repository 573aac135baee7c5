#include "lockstep/comm/work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "lockstep/comm/follow_ups.h"
#include "lockstep/comm/types.h"

namespace lockstep {
namespace {

using OptionalTimeout = std::optional<std::chrono::milliseconds>;

class ThenWork : public Work {
 public:
  ThenWork(std::shared_ptr<Work> work, std::function<void()> action)
      : work_(std::move(work)), action_(std::move(action)) {}
  int source_rank() const override { return work_->source_rank(); }
  Watch watch() const override { return work_->watch(); }
  bool look(OptionalTimeout waited) override {
    if (!work_->look(waited)) return false;
    act();
    return true;
  }
  bool acts_at_end() const override { return true; }
  bool is_ready_to_act(OptionalTimeout waited) override {
    return work_->acts_at_end() ? work_->is_ready_to_act(waited) : work_->look(waited);
  }
  EngineKind engine() const override { return work_->engine(); }

 private:
  void do_wait(OptionalTimeout timeout) override {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    work_->wait(timeout);
    // The later one of two that write the same tensor wins. The earlier one has a timeout of its own.
    for (bool may_block = !timeout; !let_earlier_ones_act(may_block); may_block = false) {
      constexpr std::chrono::microseconds kLookEvery{50};
      if (timeout && Clock::now() - begin > *timeout)
        throw TimeoutError("the operation has ended, but one that this group started before it has not");
      std::this_thread::sleep_for(kLookEvery);
    }
    act();
  }
  bool poll() override {
    if (!work_->is_completed()) return false;
    if (work_->exception()) std::rethrow_exception(work_->exception());
    if (!let_earlier_ones_act(/*may_block=*/false)) return false;
    act();
    return true;
  }
  /// Once: a group that traces looks at it beside its user. What it throws, it throws again.
  void act() {
    const at::NoGradGuard no_grad;
    // A mode of Python's in the calling thread has nothing to see here, and would want the interpreter's lock.
    const c10::impl::ExcludeDispatchKeyGuard no_python(c10::python_ks);
    const base::LockGuard lock(mutex_);
    if (has_acted_) return;
    action_();
    has_acted_ = true;
  }
  std::shared_ptr<Work> work_;
  std::function<void()>
      action_;         // goes with this object: whoever looks holds locks that its tensors must not meet
  base::Mutex mutex_;  // held while it acts
  bool has_acted_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

class AllWork : public Work {
 public:
  explicit AllWork(std::vector<std::shared_ptr<Work>> works) : works_(std::move(works)) {}
  Watch watch() const override {
    Watch watch;
    for (const auto& work : works_) {
      watch = work->watch();
      if (!watch) break;
    }
    return watch;
  }
  bool look(OptionalTimeout waited) override {
    return std::all_of(works_.begin(), works_.end(), [&](const auto& w) { return w->look(waited); });
  }

 private:
  void do_wait(OptionalTimeout timeout) override {
    using Clock = std::chrono::steady_clock;
    using std::chrono::milliseconds;
    const auto start = Clock::now();
    for (const auto& work : works_) {
      OptionalTimeout left;
      if (timeout) {
        const auto waited = std::chrono::floor<milliseconds>(Clock::now() - start);
        left = std::max(*timeout - waited, milliseconds(1));  // some engines take 0 for no timeout
      }
      work->wait(left);
    }
  }
  bool poll() override {
    const bool all =
        std::all_of(works_.begin(), works_.end(), [](const auto& w) { return w->is_completed(); });
    for (const auto& work : works_) {
      if (work->exception()) std::rethrow_exception(work->exception());
    }
    return all;
  }
  std::vector<std::shared_ptr<Work>> works_;
};

/// Gives up a mutex that is held already.
class LOCKSTEP_SCOPED_CAPABILITY AdoptedLock {
 public:
  explicit AdoptedLock(base::Mutex& mutex) LOCKSTEP_REQUIRES(mutex) : mutex_(mutex) {}
  ~AdoptedLock() LOCKSTEP_RELEASE() { mutex_.unlock(); }
  AdoptedLock(const AdoptedLock&) = delete;
  AdoptedLock& operator=(const AdoptedLock&) = delete;

 private:
  base::Mutex& mutex_;
};

}  // namespace

/// A future that is to be completed, without the lock: its callbacks may look at the work.
struct Work::Completion {
  c10::intrusive_ptr<c10::ivalue::Future> future{};  // null: none
  std::exception_ptr exception{};
  std::vector<at::Tensor> result{};

  void tell() const {
    if (!future) return;
    if (exception) {
      future->setError(exception);
    } else {
      future->markCompleted(c10::IValue(result));
    }
  }
};

/// What a work shares with the threads that look at it unasked: the one that watches it, and those that wait for later ones.
struct Work::Shared {
  /// What is to be told once the lock is given up; nothing before `work` has ended.
  Completion take_completion(const Work& work) LOCKSTEP_REQUIRES(mutex) {
    if (!work.done_ || !future) return {};
    return {.future = std::move(future), .exception = work.exception_, .result = work.result_};
  }

  base::Mutex mutex;
  c10::intrusive_ptr<c10::ivalue::Future> future
      LOCKSTEP_GUARDED_BY(mutex);  // until it is completed; null: none
};

template <class Call>
bool Work::guarded(const Call& call) {
  if (done_) return true;
  try {
    done_ = call();
  } catch (...) {
    exception_ = std::current_exception();
    done_ = true;
  }
  return done_;
}

template <class Call>
void Work::exclusively(const Call& call) {
  if (shared_ == nullptr) return call();
  Completion completion;
  {
    const base::LockGuard lock(shared_->mutex);
    call();
    completion = shared_->take_completion(*this);
  }
  completion.tell();
}

template <class Read>
auto Work::under_lock(const Read& read) const {
  if (shared_ == nullptr) return read();
  const base::LockGuard lock(shared_->mutex);
  return read();
}

void Work::wait(OptionalTimeout timeout) {
  std::exception_ptr too_early;
  exclusively([&] {
    guarded([&] {
      try {
        do_wait(timeout ? OptionalTimeout(std::min(*timeout, kLongestTimeout)) : timeout);
      } catch (const TimeoutError&) {
        if (!timeout) throw;
        too_early = std::current_exception();  // the operation may go on: a later call tells
      }
      return too_early == nullptr;
    });
  });
  if (too_early) std::rethrow_exception(too_early);
  if (exception_) std::rethrow_exception(exception_);
  if (const auto follow_ups = follow_ups_.lock())
    follow_ups->act_before(place_ + 1, timeout ? EngineKind::own : engine());  // lets go of this one, too
}

bool Work::is_completed() {
  bool completed = false;
  exclusively([&] { completed = guarded([&] { return poll(); }); });
  if (completed) {
    if (const auto follow_ups = follow_ups_.lock()) follow_ups->act_before(place_ + 1, EngineKind::own);
  }
  return completed;
}

bool Work::is_success() const {
  return under_lock([&] { return done_ && !exception_; });
}

std::exception_ptr Work::exception() const {
  return under_lock([&] { return exception_; });
}

std::vector<at::Tensor> Work::result() const {
  return under_lock([&] {
    if (exception_) std::rethrow_exception(exception_);
    if (!done_) throw Error("the operation has not ended: wait() for it before you ask for its result");
    return result_;
  });
}

bool Work::look(OptionalTimeout /*waited*/) { return poll(); }

/// The group of this operation, which has just started, has something that acts at an end: this one, or one before it.
void Work::join(std::weak_ptr<FollowUps> follow_ups, uint64_t place) {
  follow_ups_ = std::move(follow_ups);
  place_ = place;
  if (acts_at_end() && shared_ == nullptr) shared_ = std::make_shared<Shared>();
}

bool Work::let_earlier_ones_act(bool may_block) const {
  const auto follow_ups = follow_ups_.lock();
  if (!follow_ups) return true;
  follow_ups->act_before(place_, may_block ? engine() : EngineKind::own);
  return follow_ups->have_acted(place_, engine());
}

/// For who has waited for another operation, where acts_at_end(): true once it has acted, or failed. Its future, if it has one, is
/// left to the thread that watches: its callbacks are the program's. `waited`: as for look().
bool Work::ends_unasked(Unasked how, OptionalTimeout waited) {
  // It may block all the same, where the engine works at several at once and a peer has not come that far.
  constexpr std::chrono::seconds kLongest{1};
  if (!shared_->mutex.try_lock()) return false;  // its user is in a call, which sees to the rest
  const AdoptedLock lock(shared_->mutex);
  if (how == Unasked::only_look) {
    if (done_) return true;
    try {
      return acts_at_end() ? is_ready_to_act(waited) : look(waited);
    } catch (...) {
      exception_ = std::current_exception();
      return done_ = true;
    }
  }
  return guarded([&] {
    if (how == Unasked::act) return look(waited);
    try {
      do_wait(kLongest);
      return true;
    } catch (const TimeoutError&) {
      return look(std::nullopt);  // throws where it has failed so
    }
  });
}

/// What it was started for has failed, and nobody is in a call of it.
void Work::give_up(const std::exception_ptr& why) {
  if (!shared_->mutex.try_lock()) return;
  const AdoptedLock lock(shared_->mutex);
  guarded([&]() -> bool { std::rethrow_exception(why); });
}

/// For the thread that watches; true once there is no future left to complete.
bool Work::look_for_future(OptionalTimeout waited) {
  Completion completion;
  const auto look_once = [&] {
    if (!shared_->mutex.try_lock()) return false;  // its user is in a call, which may be a wait
    const AdoptedLock lock(shared_->mutex);
    if (!shared_->future) return true;
    if (!guarded([&] { return look(waited); })) return false;
    completion = shared_->take_completion(*this);
    return true;
  };
  const auto follow_ups = follow_ups_.lock();
  const bool is_over = follow_ups ? follow_ups->look_alone(*this, waited, look_once) : look_once();
  completion.tell();
  return is_over;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::get_future() {
  using Clock = std::chrono::steady_clock;
  if (shared_ != nullptr) {
    const base::LockGuard lock(shared_->mutex);
    if (shared_->future) return shared_->future;
  }
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  const Watch watch = is_completed() ? Watch() : this->watch();
  const std::shared_ptr<Work> self = weak_from_this().lock();
  if (watch && self) {
    if (shared_ == nullptr) shared_ = std::make_shared<Shared>();
    {
      const base::LockGuard lock(shared_->mutex);
      shared_->future = future;
    }
    watch([self, begin = Clock::now(), checked = Clock::now()]() mutable {
      // A look at the peers is not for every time that something ends.
      constexpr std::chrono::milliseconds kCheckEvery{50};
      const auto now = Clock::now();
      OptionalTimeout waited;
      if (now - checked >= kCheckEvery) {
        checked = now;
        waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - begin);
      }
      return self->look_for_future(waited);
    });
    return future;
  }
  try {
    wait();
    future->markCompleted(c10::IValue(result_));
  } catch (...) {
    future->setError(std::current_exception());
  }
  return future;
}

std::shared_ptr<Work> then(std::shared_ptr<Work> work, std::function<void()> action) {
  return std::make_shared<ThenWork>(std::move(work), std::move(action));
}

std::shared_ptr<Work> all_of(std::vector<std::shared_ptr<Work>> works) {
  return std::make_shared<AllWork>(std::move(works));
}

}  // namespace lockstep
