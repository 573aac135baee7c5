// The end of a wait that cannot be given up.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "lockstep/base/mutex.h"

namespace lockstep::backends {

/// A wait of Gloo's for a message ends the connection if it ends before the message does. So a thread waits for all of the
/// message's time, and shorter waits are for that thread. It goes on if this object goes. One thread at a time.
class WatchedEnd {
 public:
  /// `wait`: what the thread calls, once.
  explicit WatchedEnd(std::function<void()> wait) {
    std::thread([ending = ending_, wait = std::move(wait)] {
      std::exception_ptr failure;
      try {
        wait();
      } catch (...) {
        failure = std::current_exception();
      }
      const base::LockGuard lock(ending->mutex);
      ending->has_ended = true;
      ending->failure = failure;
      ending->changed.notify_all();
    }).detach();
  }

  /// False if it has not ended within `longest`. Throws what `wait` has thrown.
  bool ends_within(std::chrono::milliseconds longest) const {
    Ending& ending = *ending_;
    base::UniqueLock lock(ending.mutex);
    if (!ending.changed.wait_for(lock, longest,
                                 [&ending]() LOCKSTEP_REQUIRES(ending.mutex) { return ending.has_ended; }))
      return false;
    if (ending.failure) std::rethrow_exception(ending.failure);
    return true;
  }

 private:
  /// How it ended, for the thread and for this object, whichever lives longer.
  struct Ending {
    base::Mutex mutex;
    base::ConditionVariable changed;
    bool has_ended LOCKSTEP_GUARDED_BY(mutex) = false;
    std::exception_ptr failure LOCKSTEP_GUARDED_BY(mutex);
  };
  std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
};

}  // namespace lockstep::backends
