#include "lockstep/comm/follow_ups.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep {

// What goes may be a tensor of Python's, whose end may want a lock that another thread holds while it waits for the one here. So
// works go without it: the lists of those that do are declared before it is taken.

void FollowUps::add_slowly(const std::shared_ptr<Work>& work) {
  Works ended;
  const base::LockGuard lock(mutex_);
  const bool acts = work->acts_at_end();
  work->join(weak_from_this(), added_.load(std::memory_order_relaxed) + (acts ? 1 : 0));
  if (!acts) return;
  works_.push_back(work);
  added_.fetch_add(1, std::memory_order_relaxed);
  count();
  if (works_.size() < look_at_) return;
  ended = take_ended(0, Work::EngineKind::own);
  look_at_ = works_.empty() ? 1 : 2 * works_.size();
}

void FollowUps::act_slowly(uint64_t place, Work::EngineKind engine) {
  Works ended;
  const base::LockGuard lock(mutex_);
  ended = take_ended(place, engine);
}

FollowUps::Works FollowUps::take_ended(uint64_t place, Work::EngineKind engine) {
  const auto left = std::stable_partition(works_.begin(), works_.end(), [&](const auto& work) {
    const bool is_before =
        engine != Work::EngineKind::own && work->engine() == engine && work->place_ <= place;
    return !work->ends_unasked(is_before);
  });
  Works ended(std::make_move_iterator(left), std::make_move_iterator(works_.end()));
  works_.erase(left, works_.end());
  count();
  return ended;
}

void FollowUps::count() { count_.store(works_.size(), std::memory_order_relaxed); }

void FollowUps::drop() {
  Works dropped;
  const base::LockGuard lock(mutex_);
  dropped.swap(works_);
  count();
}

void FollowUps::give_up(const std::exception_ptr& why) {
  Works dropped;
  const base::LockGuard lock(mutex_);
  for (const auto& work : works_) work->give_up(why);
  dropped.swap(works_);
  count();
}

bool FollowUps::look_alone(const Work& work, const std::function<bool()>& look) {
  std::shared_ptr<Work> ended;
  const base::LockGuard lock(mutex_);
  if (!look()) return false;
  const auto at =
      std::find_if(works_.begin(), works_.end(), [&](const auto& each) { return each.get() == &work; });
  if (at == works_.end()) return true;
  ended = std::move(*at);
  works_.erase(at);
  count();
  return true;
}

}  // namespace lockstep
