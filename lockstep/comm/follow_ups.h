// What operations have left to do in their own process when they have ended, whether or not somebody waits for them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/work.h"

namespace lockstep {

/// Those of a group whose Work::acts_at_end(): each is kept until it has acted, or failed. Whoever has waited for a later
/// operation of the group sees to it that they act. Thread-safe.
class FollowUps : public std::enable_shared_from_this<FollowUps> {
 public:
  FollowUps() = default;
  FollowUps(const FollowUps&) = delete;

  /// An operation of the group has just started, and nobody else has its work yet.
  void add(const std::shared_ptr<Work>& work) {
    if (are_any() || work->acts_at_end()) add_slowly(work);
  }
  /// In any group of this process.
  static bool are_any_in_process();
  bool are_any() const { return count_.load(std::memory_order_relaxed) > 0; }
  /// How many have been added that act: the place of an operation that starts now, among them.
  uint64_t place() const { return added_.load(std::memory_order_relaxed); }
  /// An operation of `place` has ended, in `engine`. Those whose operations have ended act, and are let go. Blocks while
  /// another thread does that, and a little for an engine that does not say that the earlier ones have ended, too.
  void act(uint64_t place = 0, Work::EngineKind engine = Work::EngineKind::own) {
    if (are_any()) act_slowly(place, engine, std::numeric_limits<uint64_t>::max());
  }
  /// act(), but those of a place from `end` on stay as they are: what they write would be overwritten by one of before.
  void act_before(uint64_t end, Work::EngineKind engine) {
    if (are_any()) act_slowly(end, engine, end);
  }
  /// Have those of `engine` before `place` acted? Lets them, as far as it need not block. One of LibTorch's engines may end a later
  /// operation first, which then waits for that: of two that write one tensor the later one wins. True for our own.
  bool have_acted(uint64_t place, Work::EngineKind engine) {
    return engine == Work::EngineKind::own || !are_any() || have_acted_slowly(place, engine);
  }
  /// The group goes. Nobody lets them act any more, but who waits for them.
  void drop();
  /// What they were started for has failed: they never act, and waits for them throw `why`. The group's operations have ended.
  void give_up(const std::exception_ptr& why);
  /// For another thread that looks at `work`, by `look`: while nobody acts here. True: it has acted, and is let go. `waited`: as for
  /// Work::look().
  bool look_alone(Work& work, std::optional<std::chrono::milliseconds> waited,
                  const std::function<bool()>& look);

 private:
  using Works = std::vector<std::shared_ptr<Work>>;
  [[gnu::cold]] void add_slowly(const std::shared_ptr<Work>& work);
  [[gnu::cold]] void act_slowly(uint64_t place, Work::EngineKind engine, uint64_t end);
  [[gnu::cold]] bool have_acted_slowly(uint64_t place, Work::EngineKind engine);
  bool has_earlier(uint64_t place, Work::EngineKind engine) const LOCKSTEP_REQUIRES(mutex_);
  /// Which of those before `end` may act? From the newest on: our own engine tells the ends of a group's collectives in the order of
  /// their starts (not those of messages). So whoever has seen the later one's end and then looks at the earlier one sees its
  /// end too.
  std::vector<bool> look_at_each(uint64_t end) const LOCKSTEP_REQUIRES(mutex_);
  Works take_ended(uint64_t place, Work::EngineKind engine, uint64_t end) LOCKSTEP_REQUIRES(mutex_);
  void count() LOCKSTEP_REQUIRES(mutex_);

  // They count works_, and all that ever were there: read without the lock.
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> added_{0};
  // Held while they act. What they do calls nothing of the program's, and does not use these follow-ups.
  base::Mutex mutex_;
  Works works_ LOCKSTEP_GUARDED_BY(mutex_);  // in the order of their starts
  // A program that never waits starts operation after operation: it looks when there are so many.
  size_t look_at_ LOCKSTEP_GUARDED_BY(mutex_) = 1;
};

/// A group's own: they are dropped when it goes, since works keep what lies behind a group.
class OwnFollowUps {
 public:
  OwnFollowUps() = default;
  OwnFollowUps(const OwnFollowUps&) = delete;
  ~OwnFollowUps() { shared_->drop(); }
  const std::shared_ptr<FollowUps>& shared() const { return shared_; }

 private:
  std::shared_ptr<FollowUps> shared_ = std::make_shared<FollowUps>();
};

}  // namespace lockstep
