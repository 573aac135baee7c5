#include "lockstep/comm/follow_ups.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep {

// What goes may be a tensor of Python's, whose end may want a lock that another thread holds while it waits for the one here. So
// works go without it: the lists of those that do are declared before it is taken.

namespace {

std::atomic<int64_t> pending{0};  // in all groups
thread_local bool is_acting = false;

/// While this thread lets works act: what they call does not come back here.
class Acting {
 public:
  Acting() { is_acting = true; }
  ~Acting() { is_acting = false; }
  Acting(const Acting&) = delete;
};

}  // namespace

bool FollowUps::are_any_in_process() { return pending.load(std::memory_order_relaxed) > 0; }

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
  ended = take_ended(0, Work::EngineKind::own, std::numeric_limits<uint64_t>::max());
  look_at_ = works_.empty() ? 1 : 2 * works_.size();
}

void FollowUps::act_slowly(uint64_t place, Work::EngineKind engine, uint64_t end) {
  if (is_acting) return;
  Works ended;
  const base::LockGuard lock(mutex_);
  ended = take_ended(place, engine, end);
  look_at_ = std::max<size_t>(1, 2 * works_.size());
}

FollowUps::Works FollowUps::take_ended(uint64_t place, Work::EngineKind engine, uint64_t end) {
  const Acting acting;
  const auto left = std::stable_partition(works_.begin(), works_.end(), [&](const auto& work) {
    const bool is_before =
        engine != Work::EngineKind::own && work->engine() == engine && work->place_ <= place;
    return work->place_ >= end || !work->ends_unasked(is_before);
  });
  Works ended(std::make_move_iterator(left), std::make_move_iterator(works_.end()));
  works_.erase(left, works_.end());
  count();
  return ended;
}

void FollowUps::count() {
  const size_t before = count_.exchange(works_.size(), std::memory_order_relaxed);
  pending.fetch_add(static_cast<int64_t>(works_.size()) - static_cast<int64_t>(before),
                    std::memory_order_relaxed);
}

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
  Works earlier;
  std::shared_ptr<Work> ended;
  const base::LockGuard lock(mutex_);
  earlier =
      take_ended(0, Work::EngineKind::own,
                 std::numeric_limits<uint64_t>::max());  // before it acts, and before its future says so
  const Acting acting;
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
