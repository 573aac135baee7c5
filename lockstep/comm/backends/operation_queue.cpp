#include "lockstep/comm/backends/operation_queue.h"

#include <c10/core/GradMode.h>
#include <xmmintrin.h>

#include <utility>

namespace lockstep::backends {
namespace {

/// An operation that a caller has run for longer than this is looked after.
constexpr auto kLookEvery = std::chrono::milliseconds(50);

/// Each machine's leader adds up the same numbers. Whichever thread does it, subnormal ones are not flushed and numbers are
/// rounded to the nearest: the machines' bits stay alike.
class DefaultArithmetic {
 public:
  DefaultArithmetic() { _mm_setcsr(kDefault); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  ~DefaultArithmetic() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned int kDefault = 0x1f80;  // as a process starts
  unsigned int before_ = _mm_getcsr();
};

}  // namespace

OperationQueue::OperationQueue(std::function<void()> look) : look_(std::move(look)) {}

OperationQueue::~OperationQueue() {
  {
    const base::LockGuard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void OperationQueue::post(Operation operation, Runner runner) {
  {
    const base::LockGuard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });  // first: it may throw
    waiting_.push_back(std::move(operation));
    // Who runs an operation looks for the next one when it has ended.
    if (runner == Runner::caller || is_running_) return;
  }
  changed_.notify_all();
}

bool OperationQueue::run_next() {
  const base::LockGuard lock(mutex_);
  if (!has_work()) return false;
  ++run_by_callers_;
  if (!std::exchange(is_watching_, true)) changed_.notify_all();
  run_front();
  if (!waiting_.empty() || is_over_) changed_.notify_all();
  return true;
}

bool OperationQueue::drain(std::chrono::milliseconds longest) {
  base::UniqueLock lock(mutex_);
  return ended_.wait_for(lock, longest, [this]() LOCKSTEP_REQUIRES(mutex_) {
    return waiting_.empty() && !is_running_ && !is_looking_;
  });
}

/// Without the lock meanwhile.
void OperationQueue::run_front() noexcept {
  {
    const Operation operation = std::move(waiting_.front());
    waiting_.pop_front();
    is_running_ = true;
    mutex_.unlock();
    const at::NoGradGuard no_grad;
    const DefaultArithmetic arithmetic;
    operation();
  }
  mutex_.lock();
  is_running_ = false;
  ended_.notify_all();
}

void OperationQueue::run() {
  base::UniqueLock lock(mutex_);
  while (!is_done()) {
    if (has_work()) {
      run_front();
    } else {
      wait_for_work(lock);
    }
  }
}

/// A caller's operation does not wake the thread each time: as long as there are some, it wakes by itself to look.
void OperationQueue::wait_for_work(base::UniqueLock& lock) {
  const uint64_t before = run_by_callers_;
  if (!is_watching_) {
    changed_.wait(lock, [&]() LOCKSTEP_REQUIRES(mutex_) { return has_work() || is_done() || is_watching_; });
    return;
  }
  const auto is_due = [this]() LOCKSTEP_REQUIRES(mutex_) { return has_work() || is_done(); };
  if (changed_.wait_for(lock, kLookEvery, is_due) || run_by_callers_ != before) return;
  is_watching_ = is_running_;
  if (!is_running_) return;
  is_looking_ = true;
  mutex_.unlock();
  look_();
  mutex_.lock();
  is_looking_ = false;
  ended_.notify_all();
}

}  // namespace lockstep::backends
