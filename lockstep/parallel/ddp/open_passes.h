// The backward passes of this process that average gradients now: usually one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/mutex.h"

namespace lockstep {

class Reducer;

/// Several reducers may open in one backward, and the order in which they do may depend on the rank. Each
/// waits for its peers at the end of backward, so they end in the order of construction, which is the same on
/// all ranks. A pass whose backward an exception has ended, or kept from beginning, is *owed*: the peers are in theirs.
/// Thread-safe: replicas may run on threads.
class OpenPasses {
 public:
  struct Entry {
    Reducer* reducer;
    uint64_t order;                                       ///< of construction
    int graph_task;                                       ///< the backward's number in the autograd engine
    std::weak_ptr<const void> life;                       ///< alive while that backward runs
    std::thread::id thread = std::this_thread::get_id();  ///< of the forward
  };

  static OpenPasses& of_process();

  /// Adds a pass. Before that calls `check` with each reducer whose pass is under way in this thread.
  void enter(Entry entry, const std::function<void(const Reducer&)>& check);
  /// Removes the pass of `reducer`, if it has one.
  void leave(const Reducer* reducer);
  /// Removes, of the passes of a backward, the one whose reducer was made first; null when there is none.
  Reducer* take_first(int graph_task);
  /// Works like take_first(), for the passes that are owed by `asking` and by reducers whose forwards run in this thread.
  Reducer* take_owed(const Reducer* asking);

 private:
  Reducer* take(const std::function<bool(const Entry&)>& is_meant);

  base::Mutex mutex_;
  std::vector<Entry> entries_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};  // of entries: usually there are none to look for
};

}  // namespace lockstep
