// Keeps all groups of a process going. A wait in any of them advances every one, so that two groups cannot
// hang each other; one lock makes them safe from several threads; a rank sleeps on one doorbell, whoever it
// waits for.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/shm/layout.h"
#include "lockstep/shm/wait.h"

namespace lockstep::shm {

/// A mutex that its holder can give to whoever waits for it. It belongs to the thread that makes it, for
/// which it costs two plain stores, until another thread wants it: from then on it is a mutex as others are.
class LOCKSTEP_CAPABILITY("mutex") EngineMutex {
 public:
  EngineMutex();
  void lock() LOCKSTEP_ACQUIRE() {
    if (owner_ == __builtin_thread_pointer() && lock_as_owner()) return;
    lock_as_any();
  }
  void unlock() LOCKSTEP_RELEASE() {
    if (owner_ == __builtin_thread_pointer() && owner_inside_.load(std::memory_order_relaxed)) {
      owner_inside_.store(false, std::memory_order_release);
    } else if (state_.exchange(kFree, std::memory_order_release) == kWanted) {
      futex_wake(state_);
    }
  }
  /// For code that is called with it held, through a function that does not know this mutex. Ends the process where no thread
  /// holds it, in a build with assertions.
  void assert_held() const LOCKSTEP_ASSERT_CAPABILITY(this) {
    assert(owner_inside_.load(std::memory_order_relaxed) || state_.load(std::memory_order_relaxed) != kFree);
  }
  /// Lets a thread that wants it have it, and takes it again.
  void give_way() LOCKSTEP_REQUIRES(this) {
    if (wanting_.load(std::memory_order_relaxed) > 0) give_way_slowly();
  }

 private:
  enum class Phase : uint8_t {
    owned,    // no other thread has wanted it
    sharing,  // one does: the owner no longer takes it as such, but may still be inside
    shared,
  };
  static constexpr uint32_t kFree = 0, kHeld = 1, kWanted = 2;
  bool lock_as_owner() {
    owner_inside_.store(true, std::memory_order_relaxed);
    // Only the compiler is told to keep the order; the processor is told by whoever shares the mutex.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (phase_.load(std::memory_order_relaxed) == Phase::owned) return true;
    owner_inside_.store(false, std::memory_order_release);
    return false;
  }
  void lock_as_any();
  void share();
  void give_way_slowly() LOCKSTEP_REQUIRES(this);
  void* const owner_;  // the thread that made it, where the system can do what share() needs
  std::atomic<bool> owner_inside_{false};
  std::atomic<Phase> phase_;
  std::atomic<uint32_t> state_{kFree};
  std::atomic<uint32_t> wanting_{0};  // threads in lock_as_any
  std::atomic<uint32_t> taken_{0};    // how often it has been got there
};

/// A group, as the engine sees it. The engine calls it with its mutex held, which only the group's own declaration can say: this
/// class does not know the engine.
class Driven {
 public:
  /// Does what can be done now without blocking; false where nothing is in flight. Failures are kept for
  /// whoever asks for the operation. `thorough`: looks also for what nothing in flight here waits for.
  virtual bool advance_for_others(bool thorough) noexcept = 0;

 protected:
  /// Virtual for g++ 12, which takes the friend below for one that could delete through it.
  virtual ~Driven() = default;

 private:
  friend class Engine;
  bool is_active_ = false;
};

/// One per process; ranks that are threads of one process have one each.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine() = default;
  Engine(const Engine&) = delete;
  /// This process's. A fork of it gets one of its own.
  static std::shared_ptr<Engine> of_process();

  using Lock = base::LockGuard<EngineMutex>;
  EngineMutex& mutex() LOCKSTEP_RETURN_CAPABILITY(mutex_) { return mutex_; }

  /// From now on a thread of its own keeps all groups going too, as long as this process is a rank in a
  /// segment. It sleeps where nothing happens. For engines that a shared_ptr owns.
  void start_progress_thread();
  bool has_progress_thread() const { return has_progress_thread_.load(std::memory_order_relaxed); }
  /// That thread calls `look` whenever something may have ended, and every 50 ms, until it returns true.
  void watch(std::function<bool()> look);

  /// How often a sleeping thread looks whether its peers still live: only that; what they do wakes it.
  void look_at_peers_every(std::chrono::nanoseconds interval) LOCKSTEP_REQUIRES(mutex_) {
    look_at_peers_every_ = interval;
  }
  void attach(Driven& group) LOCKSTEP_REQUIRES(mutex_) { attached_.push_back(&group); }
  void detach(Driven& group) LOCKSTEP_REQUIRES(mutex_);
  /// `bell`: of this process's rank in a segment.
  void attach(Doorbell& bell) LOCKSTEP_REQUIRES(mutex_) { bells_.push_back(&bell); }
  void detach(Doorbell& bell) LOCKSTEP_REQUIRES(mutex_);
  /// Something is in flight in `group`.
  void activate(Driven& group) LOCKSTEP_REQUIRES(mutex_) {
    if (!group.is_active_) add_active(group);
  }
  /// Something has ended, or failed, that another thread of this process may wait for.
  void wake_own_threads() LOCKSTEP_REQUIRES(mutex_) {
    if (!sleeping_.empty()) ring_own_bells();
  }
  /// Advances what is in flight in other groups than `self`.
  void advance_others(const Driven& self) LOCKSTEP_REQUIRES(mutex_) {
    if (active_.size() > 1 || (active_.size() == 1 && active_.front() != &self)) advance_active(self);
  }

  /// Blocks until `ready()`, which may do work. `check(timed_out)` is called now and then and throws where
  /// there is no hope any more, or no time. The lock is released while this thread sleeps and where another
  /// wants it. `ready` and `check` are called with it held: they begin with mutex().assert_held().
  template <class Ready, class Check>
  void wait_until(const Driven& self, bool oversubscribed, const Ready& ready, const Check& check,
                  std::chrono::milliseconds timeout) LOCKSTEP_REQUIRES(mutex_) {
    if (ready()) return;
    const Counted waiting(waiting_);
    // Threads that wait together would take the lock from each other.
    Backoff backoff(oversubscribed || waiting_ > 1);
    // The clock is first read when the spin is over: what ends within it never pays for it.
    Clock::time_point deadline{};
    while (true) {
      advance_others(self);
      mutex_.give_way();
      if (ready()) return;
      const Backoff::Step step = backoff.next();
      if (step == Backoff::Step::look) continue;
      if (step == Backoff::Step::yield) {
        yield();
        continue;
      }
      const auto now = Clock::now();
      if (deadline == Clock::time_point{}) deadline = now + timeout;
      check(now >= deadline);
      if (sleep(ready, std::min<std::chrono::nanoseconds>(look_at_peers_every_, deadline - now))) return;
    }
  }

 private:
  struct Counted {
    explicit Counted(int& count_) : count(count_) { ++count; }
    Counted(const Counted&) = delete;
    ~Counted() { --count; }
    int& count;
  };

  /// Says that it sleeps, looks once more and sleeps; true where that look found it ready.
  template <class Ready>
  bool sleep(const Ready& ready, std::chrono::nanoseconds longest) LOCKSTEP_REQUIRES(mutex_) {
    const Sleeper sleeper(*this, /*waits=*/true);
    advance_all_thoroughly();
    if (ready()) return true;
    sleep_on(sleeper, longest);
    return false;
  }

  /// One thread's sleep on all bells. `waits`: for an operation to end.
  class Sleeper {
   public:
    Sleeper(Engine& engine, bool waits) LOCKSTEP_REQUIRES(engine.mutex_);
    Sleeper(const Sleeper&) = delete;
    ~Sleeper();  // with the lock that was there at the beginning: the compiler does not look into destructors
    /// What it sleeps on, as it is now: a bell can be forgotten while the thread sleeps. Empty: none is left.
    std::vector<FutexWord> words() const;
    /// This process's rank has left that segment, which may be unmapped soon.
    void forget(const Doorbell& bell);

   private:
    Engine& engine_;
    std::vector<Doorbell*> more_;  // but the first
    std::vector<uint32_t> more_rings_;
    Doorbell* first_;  // null once forgotten
    uint32_t waits_;   // 1 or 0
    uint32_t first_rings_;
  };

  /// Releases the lock meanwhile.
  void sleep_on(const Sleeper& sleeper, std::chrono::nanoseconds longest) LOCKSTEP_REQUIRES(mutex_);
  [[gnu::cold]] void add_active(Driven& group) LOCKSTEP_REQUIRES(mutex_);
  void advance_active(const Driven& self) LOCKSTEP_REQUIRES(mutex_);
  void advance_all_thoroughly() LOCKSTEP_REQUIRES(mutex_);
  void ring_own_bells() LOCKSTEP_REQUIRES(mutex_);
  void yield() LOCKSTEP_REQUIRES(mutex_);
  void run_progress_thread();
  void look_at_watched() LOCKSTEP_REQUIRES(mutex_);

  EngineMutex mutex_;
  std::vector<Driven*> attached_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Driven*> active_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Doorbell*> bells_ LOCKSTEP_GUARDED_BY(mutex_);
  std::chrono::nanoseconds look_at_peers_every_ LOCKSTEP_GUARDED_BY(mutex_) = std::chrono::milliseconds(50);
  int waiting_ LOCKSTEP_GUARDED_BY(mutex_) = 0;                 // threads in wait_until
  std::vector<Sleeper*> sleeping_ LOCKSTEP_GUARDED_BY(mutex_);  // on the bells
  std::atomic<bool> has_progress_thread_{false};
  bool progress_thread_runs_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::function<bool()>> watched_ LOCKSTEP_GUARDED_BY(mutex_);
};

/// Wakes whoever sleeps on `bell`. A sequentially consistent fence must stand between what this rank did and
/// this call, or a peer that falls asleep in between would miss it.
inline void ring(Doorbell& bell) {
  if (bell.sleeping.load(std::memory_order_relaxed) == 0) return;
  bell.rings.fetch_add(1, std::memory_order_relaxed);
  futex_wake(bell.rings);
}

}  // namespace lockstep::shm
