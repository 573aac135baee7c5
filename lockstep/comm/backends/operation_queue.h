// Runs operations one after another: in a thread of its own, or in calls that wait for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "lockstep/base/mutex.h"

namespace lockstep::backends {

/// The thread begins with the first operation. Thread-safe.
class OperationQueue {
 public:
  using Operation = std::function<void()>;
  /// Who is to run an operation.
  enum class Runner {
    thread,  ///< the queue's, unless a caller of run_next() is earlier
    caller,  ///< who posts it, and calls run_next() until it has ended or another thread runs one: no thread is woken
  };

  /// `look`: called by the queue's thread now and then while a caller's operation takes long. Must not throw.
  explicit OperationQueue(std::function<void()> look);
  OperationQueue(const OperationQueue&) = delete;
  /// Blocks until all have ended.
  ~OperationQueue();
  /// `operation` must not throw.
  void post(Operation operation, Runner runner = Runner::thread);
  /// Runs the next operation in this call. False: there is none, or another thread runs one, which then sees to the rest.
  bool run_next();
  /// Blocks until nothing is left to run and nobody looks, or `longest` is over; false then.
  bool drain(std::chrono::milliseconds longest);

 private:
  void run();
  void run_front() noexcept LOCKSTEP_REQUIRES(mutex_);
  void wait_for_work(base::UniqueLock& lock) LOCKSTEP_REQUIRES(mutex_);
  bool has_work() const LOCKSTEP_REQUIRES(mutex_) { return !is_running_ && !waiting_.empty(); }
  bool is_done() const LOCKSTEP_REQUIRES(mutex_) { return is_over_ && !is_running_ && waiting_.empty(); }

  const std::function<void()> look_;
  base::Mutex mutex_;
  base::ConditionVariable changed_;  // for the queue's thread
  base::ConditionVariable ended_;    // for drain()
  std::deque<Operation> waiting_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_running_ LOCKSTEP_GUARDED_BY(mutex_) = false;      // an operation
  uint64_t run_by_callers_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // operations, the one that runs included
  bool is_looking_ LOCKSTEP_GUARDED_BY(mutex_) = false;      // look_() runs
  bool is_watching_ LOCKSTEP_GUARDED_BY(mutex_) = false;     // the thread wakes by itself
  bool is_over_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::backends
