// Locks that clang checks: which members a mutex guards, and which functions want it held, stand in the declarations,
// and -Wthread-safety makes an access without it an error. Other compilers see nothing of it.
//
//     base::Mutex mutex_;
//     std::deque<Task> tasks_ LOCKSTEP_GUARDED_BY(mutex_);
//     void add(Task task) LOCKSTEP_REQUIRES(mutex_);   // called with the lock held
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#if defined(__clang__)
#define LOCKSTEP_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LOCKSTEP_THREAD_ATTRIBUTE(x)
#endif
/// A class whose objects can be held.
#define LOCKSTEP_CAPABILITY(name) LOCKSTEP_THREAD_ATTRIBUTE(capability(name))
/// A class whose objects hold a mutex as long as they live.
#define LOCKSTEP_SCOPED_CAPABILITY LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable)
/// A member that is read and written with the mutex held only.
#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(mutex))
/// A pointer to something that is read and written with the mutex held only.
#define LOCKSTEP_PT_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
/// A function that is called with the mutex held.
#define LOCKSTEP_REQUIRES(...) LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// A function that is called without it, because it takes it.
#define LOCKSTEP_EXCLUDES(...) LOCKSTEP_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define LOCKSTEP_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define LOCKSTEP_RELEASE(...) LOCKSTEP_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define LOCKSTEP_TRY_ACQUIRE(...) LOCKSTEP_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
/// A function after which the compiler takes the mutex as held: for code that is called with it, by whoever cannot say so.
#define LOCKSTEP_ASSERT_CAPABILITY(...) LOCKSTEP_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
/// A function that returns the mutex.
#define LOCKSTEP_RETURN_CAPABILITY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(lock_returned(mutex))
/// A function whose lock the compiler cannot follow; its comment says why it is right.
#define LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS LOCKSTEP_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace lockstep::base {

/// std::mutex.
class LOCKSTEP_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() LOCKSTEP_ACQUIRE() { mutex_.lock(); }
  void unlock() LOCKSTEP_RELEASE() { mutex_.unlock(); }
  bool try_lock() LOCKSTEP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class UniqueLock;
  std::mutex mutex_;
};

/// std::lock_guard: holds a mutex of any kind as long as it lives.
template <class M = Mutex>
class LOCKSTEP_SCOPED_CAPABILITY LockGuard {
 public:
  explicit LockGuard(M& mutex) LOCKSTEP_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~LockGuard() LOCKSTEP_RELEASE() { mutex_.unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  M& mutex_;
};

/// std::unique_lock: it can be given up and taken again, and a ConditionVariable waits with it.
class LOCKSTEP_SCOPED_CAPABILITY UniqueLock {
 public:
  explicit UniqueLock(Mutex& mutex) LOCKSTEP_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~UniqueLock() LOCKSTEP_RELEASE() = default;
  UniqueLock(const UniqueLock&) = delete;
  UniqueLock& operator=(const UniqueLock&) = delete;
  void lock() LOCKSTEP_ACQUIRE() { lock_.lock(); }
  void unlock() LOCKSTEP_RELEASE() { lock_.unlock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

/// std::condition_variable. A condition is a lambda that says what it needs:
///
///     changed_.wait(lock, [this]() LOCKSTEP_REQUIRES(mutex_) { return is_done_; });
///
/// It is called with the lock held, which the compiler cannot see here.
class ConditionVariable {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  void wait(UniqueLock& lock) { condition_.wait(lock.lock_); }
  template <class Condition>
  void wait(UniqueLock& lock, Condition condition) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
    while (!condition()) condition_.wait(lock.lock_);
  }
  template <class Clock, class Duration, class Condition>
  bool wait_until(UniqueLock& lock, const std::chrono::time_point<Clock, Duration>& until,
                  Condition condition) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
    while (!condition()) {
      if (condition_.wait_until(lock.lock_, until) == std::cv_status::timeout) return condition();
    }
    return true;
  }
  template <class Rep, class Period, class Condition>
  bool wait_for(UniqueLock& lock, const std::chrono::duration<Rep, Period>& time,
                Condition condition) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
    return wait_until(lock, std::chrono::steady_clock::now() + time, std::move(condition));
  }
  template <class Rep, class Period>
  std::cv_status wait_for(UniqueLock& lock, const std::chrono::duration<Rep, Period>& time) {
    return condition_.wait_for(lock.lock_, time);
  }

 private:
  std::condition_variable condition_;
};

}  // namespace lockstep::base
