// A thread that runs operations one after another.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <thread>

#include "lockstep/base/mutex.h"

namespace lockstep::backends {

/// The thread begins with the first operation. Thread-safe.
class OperationQueue {
 public:
  OperationQueue() = default;
  OperationQueue(const OperationQueue&) = delete;
  /// Blocks until all have ended.
  ~OperationQueue();
  /// `operation` must not throw.
  void post(std::function<void()> operation);
  /// Blocks until nothing is left to run, or `longest` is over; false then.
  bool drain(std::chrono::milliseconds longest);

 private:
  void run();
  base::Mutex mutex_;
  base::ConditionVariable changed_;
  std::deque<std::function<void()>> waiting_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_running_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // an operation
  bool is_over_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lockstep::backends
