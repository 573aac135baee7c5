#include "lockstep/comm/backends/operation_queue.h"

#include <c10/core/GradMode.h>

#include <utility>

namespace lockstep::backends {

OperationQueue::~OperationQueue() {
  {
    const base::LockGuard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void OperationQueue::post(std::function<void()> operation) {
  {
    const base::LockGuard lock(mutex_);
    waiting_.push_back(std::move(operation));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

bool OperationQueue::drain(std::chrono::milliseconds longest) {
  base::UniqueLock lock(mutex_);
  return changed_.wait_for(lock, longest,
                           [this]() LOCKSTEP_REQUIRES(mutex_) { return waiting_.empty() && !is_running_; });
}

void OperationQueue::run() {
  const at::NoGradGuard no_grad;
  base::UniqueLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this]() LOCKSTEP_REQUIRES(mutex_) { return is_over_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    {
      const std::function<void()> operation = std::move(waiting_.front());
      waiting_.pop_front();
      is_running_ = true;
      lock.unlock();
      operation();
    }
    lock.lock();
    is_running_ = false;
    changed_.notify_all();
  }
}

}  // namespace lockstep::backends
