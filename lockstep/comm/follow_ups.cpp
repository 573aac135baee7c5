#include "lockstep/comm/follow_ups.h"

#include <algorithm>
#include <array>
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
  Works left, ended;
  const std::vector<bool> is_ready = look_at_each(end);
  // LibTorch's engines may end a later operation first: it waits, since both may write one tensor.
  std::array<bool, 3> is_one_left{};
  for (size_t i = 0; i < works_.size(); ++i) {
    auto& work = works_[i];
    const Work::EngineKind own_engine = work->engine();
    const bool is_before = engine != Work::EngineKind::own && own_engine == engine && work->place_ <= place;
    bool& waits = is_one_left.at(static_cast<size_t>(own_engine));
    const auto how = is_before ? Work::Unasked::may_wait : Work::Unasked::act;
    if (work->place_ < end && !waits && is_ready[i] && work->ends_unasked(how)) {
      ended.push_back(std::move(work));
    } else {
      waits = own_engine != Work::EngineKind::own;
      left.push_back(std::move(work));
    }
  }
  works_ = std::move(left);
  count();
  return ended;
}

std::vector<bool> FollowUps::look_at_each(uint64_t end) const {
  std::vector<bool> is_ready(works_.size(), true);
  for (size_t i = works_.size(); i-- > 0;) {
    Work& work = *works_[i];
    if (work.place_ < end && work.engine() == Work::EngineKind::own)
      is_ready[i] = work.ends_unasked(Work::Unasked::only_look);
  }
  return is_ready;
}

bool FollowUps::has_earlier(uint64_t place, Work::EngineKind engine) const {
  return engine != Work::EngineKind::own && std::any_of(works_.begin(), works_.end(), [&](const auto& work) {
           return work->place_ < place && work->engine() == engine;
         });
}

bool FollowUps::have_acted_slowly(uint64_t place, Work::EngineKind engine) {
  if (is_acting) return true;  // whoever lets works act sees to their order
  Works ended;
  const base::LockGuard lock(mutex_);
  ended = take_ended(0, Work::EngineKind::own, place);
  return !has_earlier(place, engine);
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

bool FollowUps::look_alone(Work& work, std::optional<std::chrono::milliseconds> waited,
                           const std::function<bool()>& look) {
  Works earlier;
  std::shared_ptr<Work> ended;
  const base::LockGuard lock(mutex_);
  // This look comes first: earlier ones that have ended by now act before it does, and before its future says so.
  const bool is_ready = [&] {
    const Acting looking;
    return work.ends_unasked(Work::Unasked::only_look, waited);
  }();
  // One that does not act has the place of the last one that does and was started before it.
  const uint64_t end = work.place_ + (work.acts_at_end() ? 0 : 1);
  earlier = take_ended(0, Work::EngineKind::own, end);
  if (!is_ready || has_earlier(end, work.engine())) return false;
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
