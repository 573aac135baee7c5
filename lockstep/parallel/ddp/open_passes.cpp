#include "lockstep/parallel/ddp/open_passes.h"

#include <utility>

namespace lockstep {

/// Never destroyed: graphs, and so reducers, may be globals.
OpenPasses& OpenPasses::of_process() {
  static auto* const passes = new OpenPasses();
  return *passes;
}

void OpenPasses::enter(Entry entry, const std::function<void(const Reducer&)>& check) {
  const base::LockGuard lock(mutex_);
  for (const Entry& other : entries_) {
    if (other.reducer != entry.reducer && other.thread == entry.thread && !other.life.expired()) {
      check(*other.reducer);
    }
  }
  entries_.push_back(std::move(entry));
  count_.store(entries_.size(), std::memory_order_relaxed);
}

void OpenPasses::leave(const Reducer* reducer) {
  const base::LockGuard lock(mutex_);
  std::erase_if(entries_, [&](const Entry& entry) { return entry.reducer == reducer; });
  count_.store(entries_.size(), std::memory_order_relaxed);
}

Reducer* OpenPasses::take_first(int graph_task) {
  return take([&](const Entry& entry) { return entry.graph_task == graph_task && !entry.life.expired(); });
}

Reducer* OpenPasses::take_owed(const Reducer* asking) {
  if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
  return take([asking, thread = std::this_thread::get_id()](const Entry& entry) {
    return (entry.reducer == asking || entry.thread == thread) && entry.life.expired();
  });
}

Reducer* OpenPasses::take(const std::function<bool(const Entry&)>& is_meant) {
  const base::LockGuard lock(mutex_);
  auto first = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (is_meant(*it) && (first == entries_.end() || it->order < first->order)) first = it;
  }
  if (first == entries_.end()) return nullptr;
  Reducer* const reducer = first->reducer;
  entries_.erase(first);
  count_.store(entries_.size(), std::memory_order_relaxed);
  return reducer;
}

}  // namespace lockstep
