// A thread that runs operations one after another.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

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
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool is_running_ = false;  // an operation
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace lockstep::backends
