#include "lockstep/timeline/totals.h"

#include <array>
#include <atomic>
#include <deque>

#include "lockstep/base/mutex.h"

namespace lockstep::timeline {

struct TakesTurns::State {
  struct Ended {
    int64_t begin, end;
  };
  int64_t waited = 0;
  std::deque<Ended> ended{};  // as Sums::ended
};

namespace {

using Ended = TakesTurns::State::Ended;

std::atomic<int> keepers{0};
std::atomic<bool> is_paused{false};

/// Spans of which one may lie inside another that has not ended yet. More are not kept.
constexpr size_t kMostOpen = 4096;

struct Sums {
  base::Mutex mutex;
  std::array<int64_t, 5> nanoseconds LOCKSTEP_GUARDED_BY(mutex){};  // in the order of Totals
  std::deque<Ended> ended LOCKSTEP_GUARDED_BY(mutex);               // in the order of their ends
};
Sums& sums() {
  static auto* const instance = new Sums;
  return *instance;
}

/// Its place in Sums::nanoseconds; -1 for what is not added up.
int choose_part(Kind kind) {
  switch (kind) {
    case Kind::data:
      return 0;
    case Kind::forward:
      return 1;
    case Kind::backward:
      return 2;
    case Kind::optimizer:
      return 3;
    case Kind::wait:
    case Kind::collective:
      return 4;
    default:
      return -1;
  }
}

bool keeps_totals() {
  return keepers.load(std::memory_order_relaxed) > 0 && !is_paused.load(std::memory_order_relaxed);
}

thread_local TakesTurns::State* own = nullptr;

/// Without the waits of a thread that takes turns.
int64_t own_now() { return own != nullptr ? now() - own->waited : now(); }

void add(Kind kind, int64_t begin, int64_t end) {
  const int part = choose_part(kind);
  if (part < 0) return;
  Sums& all = sums();
  const base::LockGuard lock(all.mutex);
  std::deque<Ended>& ended = own != nullptr ? own->ended : all.ended;
  int64_t time = end - begin;
  while (!ended.empty() && ended.back().begin >= begin) {
    time -= ended.back().end - ended.back().begin;
    ended.pop_back();
  }
  ended.push_back({begin, end});
  if (ended.size() > kMostOpen) ended.pop_front();
  all.nanoseconds[static_cast<size_t>(part)] += time > 0 ? time : 0;  // less than 0: spans of several threads
}

}  // namespace

KeepTotals::KeepTotals() { keepers.fetch_add(1, std::memory_order_relaxed); }

KeepTotals::~KeepTotals() { keepers.fetch_sub(1, std::memory_order_relaxed); }

Totals totals() {
  Sums& all = sums();
  const base::LockGuard lock(all.mutex);
  const auto seconds = [&](size_t part) LOCKSTEP_REQUIRES(all.mutex) {
    return static_cast<double>(all.nanoseconds[part]) * 1e-9;
  };
  return {.data = seconds(0),
          .forward = seconds(1),
          .backward = seconds(2),
          .optimizer = seconds(3),
          .communication = seconds(4)};
}

Counted::Counted(Kind kind) : kind_(kind), begin_(keeps_totals() ? own_now() : 0) {}

Counted::~Counted() {
  if (begin_ != 0) add(kind_, begin_, own_now());
}

TakesTurns::TakesTurns() : state_(std::make_unique<State>()) { own = state_.get(); }

TakesTurns::~TakesTurns() { own = nullptr; }

void TakesTurns::wait(const std::function<void()>& wait) {
  const int64_t begin = now();
  wait();
  state_->waited += now() - begin;
}

Uncounted::Uncounted() { is_paused.store(true, std::memory_order_relaxed); }

Uncounted::~Uncounted() { is_paused.store(false, std::memory_order_relaxed); }

}  // namespace lockstep::timeline
