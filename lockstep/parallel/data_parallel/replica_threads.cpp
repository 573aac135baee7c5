#include "lockstep/parallel/data_parallel/replica_threads.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <utility>

#include <fmt/format.h>

namespace lockstep {
namespace {

/// The threads that this one serves, to refuse a wait for itself.
thread_local const ReplicaThreads* serving = nullptr;

std::string describe_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

ReplicaThreads::ReplicaThreads(int count, int intra_op_threads) {
  const int before = at::get_num_threads();
  {
    const base::LockGuard lock(mutex_);
    running_ = count;
  }
  try {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, i, intra_op_threads] { serve(i, intra_op_threads); });
    }
  } catch (...) {
    end();
    throw;
  }
  base::UniqueLock lock(mutex_);
  done_.wait(lock, [&]() LOCKSTEP_REQUIRES(mutex_) { return running_ == 0; });
  // The number is also what threads of the process begin with: it is the caller's again.
  at::set_num_threads(before);
}

ReplicaThreads::~ReplicaThreads() { end(); }

void ReplicaThreads::end() {
  {
    const base::LockGuard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReplicaThreads::serve(int index, int intra_op_threads) {
  serving = this;
  at::get_num_threads();  // its lazy start would overwrite what follows
  at::set_num_threads(intra_op_threads);
  base::UniqueLock lock(mutex_);
  uint64_t seen = 0;
  if (--running_ == 0) done_.notify_all();
  while (true) {
    wake_.wait(lock, [&]() LOCKSTEP_REQUIRES(mutex_) { return ends_ || round_ != seen; });
    if (ends_) return;
    seen = round_;
    if (index >= count_) continue;
    const auto* const work = work_;
    lock.unlock();
    std::exception_ptr error;
    try {
      (*work)(index);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    errors_[static_cast<size_t>(index)] = std::move(error);
    if (--running_ == 0) done_.notify_all();
  }
}

void ReplicaThreads::run(int count, const char* what, const std::function<void(int)>& work) {
  if (serving == this) {
    throw Error("DataParallel: a replica called the wrapper that it belongs to, which would wait for itself");
  }
  std::vector<std::exception_ptr> errors;
  {
    base::UniqueLock lock(mutex_);
    if (running_ != 0) throw Error("DataParallel: two threads use one wrapper at the same time");
    errors_.assign(static_cast<size_t>(count), nullptr);
    work_ = &work;
    count_ = running_ = count;
    ++round_;
    wake_.notify_all();
    done_.wait(lock, [&]() LOCKSTEP_REQUIRES(mutex_) { return running_ == 0; });
    errors = std::exchange(errors_, {});
  }
  for (size_t i = 0; i < errors.size(); ++i) {
    if (!errors[i]) continue;
    throw ReplicaError(
        fmt::format("DataParallel: replica {} of {} in {}: {}", i, size(), what, describe_error(errors[i])),
        static_cast<int>(i), errors[i]);
  }
}

}  // namespace lockstep
