// A thread for each replica.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"

namespace lockstep {

/// What a replica's forward or backward threw: its message begins with the replica's number.
class ReplicaError : public Error {
 public:
  ReplicaError(const std::string& message, int replica, std::exception_ptr cause)
      : Error(message), replica_(replica), cause_(std::move(cause)) {}
  int replica() const { return replica_; }
  const std::exception_ptr& cause() const { return cause_; }  ///< what it threw

 private:
  int replica_;
  std::exception_ptr cause_;
};

/// Threads that stay, each with LibTorch's intra-op threads of its own. Sleeping ones cost nothing.
class ReplicaThreads {
 public:
  /// `intra_op_threads`: of each; at::get_num_threads() of the caller stays what it is. Throws
  /// std::system_error where no thread can be made.
  ReplicaThreads(int count, int intra_op_threads);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }
  /// Calls work(i), i in [0, count), each on thread i, and waits for all; count <= size(). Then throws
  /// ReplicaError for the first of those that threw. `what`: "forward", for its message. One caller at a
  /// time, never one of the threads.
  void run(int count, const char* what, const std::function<void(int)>& work);

 private:
  void serve(int index, int intra_op_threads);
  void end();

  base::Mutex mutex_;
  base::ConditionVariable wake_, done_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  uint64_t round_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int count_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int running_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool ends_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::vector<std::exception_ptr> errors_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
