#include "lockstep/shm/engine.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <iterator>
#include <thread>
#include <utility>

#include "lockstep/shm/process.h"

namespace lockstep::shm {

namespace {

// Not in older headers.
constexpr int kMembarrierPrivateExpedited = 8, kMembarrierRegisterPrivateExpedited = 16;
bool membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

EngineMutex::EngineMutex()
    : owner_(membarrier(kMembarrierRegisterPrivateExpedited) ? __builtin_thread_pointer() : nullptr),
      phase_(owner_ == nullptr ? Phase::shared : Phase::owned) {}

/// The barrier in every running thread makes sure that the owner sees the new phase from its next lock() on,
/// or that this thread sees the owner inside, and waits for it.
void EngineMutex::share() {
  Phase owned = Phase::owned;
  phase_.compare_exchange_strong(owned, Phase::sharing);
  membarrier(kMembarrierPrivateExpedited);
  constexpr int kYields = 100;
  for (int i = 0; owner_inside_.load(std::memory_order_acquire); ++i) {
    if (i < kYields) {
      ::sched_yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  phase_.store(Phase::shared, std::memory_order_release);
}

void EngineMutex::lock_as_any() {
  constexpr int kPauses = 100;
  const auto get = [&](uint32_t as) {
    uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, as, std::memory_order_acquire);
  };
  const bool is_shared = phase_.load(std::memory_order_acquire) == Phase::shared;
  if (is_shared && get(kHeld)) return;
  wanting_.fetch_add(1, std::memory_order_relaxed);
  if (!is_shared && owner_ != __builtin_thread_pointer()) share();
  bool got = false;
  for (int i = 0; i < kPauses && !got; ++i) {
    got = state_.load(std::memory_order_relaxed) == kFree && get(kHeld);
    if (!got) pause();
  }
  // As wanted, since other threads may sleep here too.
  while (!got && state_.exchange(kWanted, std::memory_order_acquire) != kFree) {
    futex_wait(state_, kWanted, std::chrono::seconds(1));
  }
  wanting_.fetch_sub(1, std::memory_order_relaxed);
  taken_.fetch_add(1, std::memory_order_relaxed);
}

void EngineMutex::give_way_slowly() {
  constexpr int kPauses = 200, kYields = 20;
  const uint32_t before = taken_.load(std::memory_order_relaxed);
  const auto nobody_has_come = [&] {
    return taken_.load(std::memory_order_relaxed) == before && wanting_.load(std::memory_order_relaxed) > 0;
  };
  unlock();
  for (int i = 0; i < kPauses && nobody_has_come(); ++i) pause();
  for (int i = 0; i < kYields && nobody_has_come(); ++i) ::sched_yield();
  lock();
}

std::shared_ptr<Engine> Engine::of_process() {
  struct Owned {
    RankProcess process;
    std::shared_ptr<Engine> engine = std::make_shared<Engine>();
  };
  // No lock, which a fork could inherit held. What a fork inherits otherwise, it leaves alone.
  static std::atomic<Owned*> current{nullptr};
  Owned* owned = current.load(std::memory_order_acquire);
  while (owned == nullptr || owned->process.is_copy()) {
    auto fresh = std::make_unique<Owned>();
    if (current.compare_exchange_weak(owned, fresh.get(), std::memory_order_acq_rel)) owned = fresh.release();
  }
  return owned->engine;
}

void Engine::detach(Driven& group) {
  std::erase(attached_, &group);
  std::erase(active_, &group);
  group.is_active_ = false;
}

void Engine::detach(Doorbell& bell) {
  std::erase(bells_, &bell);
  for (Sleeper* const sleeper : sleeping_) sleeper->forget(bell);
}

/// Nobody joins the thread, which could be the one that ends the last rank. After that it touches nothing but
/// the engine.
void Engine::start_progress_thread() {
  const Lock lock(mutex_);
  has_progress_thread_.store(true, std::memory_order_relaxed);
  if (std::exchange(progress_thread_runs_, true)) return;
  std::thread([self = shared_from_this()] { self->run_progress_thread(); }).detach();
}

void Engine::run_progress_thread() {
  constexpr std::chrono::milliseconds kLookEvery{50};
  const Lock lock(mutex_);
  while (!bells_.empty()) {
    const Sleeper sleeper(*this, /*waits=*/false);
    advance_all_thoroughly();
    look_at_watched();
    sleep_on(sleeper, kLookEvery);
  }
  progress_thread_runs_ = false;
  has_progress_thread_.store(false, std::memory_order_relaxed);
}

void Engine::watch(std::function<bool()> look) {
  const Lock lock(mutex_);
  watched_.push_back(std::move(look));
  wake_own_threads();
}

/// Without the lock, since they run callbacks of the program and let go of groups. What ends meanwhile rings
/// the bell that this thread is about to sleep on.
void Engine::look_at_watched() {
  if (watched_.empty()) return;
  auto watched = std::exchange(watched_, {});
  mutex_.unlock();
  std::erase_if(watched, [](const auto& look) { return look(); });
  mutex_.lock();
  watched_.insert(watched_.begin(), std::make_move_iterator(watched.begin()),
                  std::make_move_iterator(watched.end()));
}

void Engine::add_active(Driven& group) {
  group.is_active_ = true;
  active_.push_back(&group);
}

void Engine::advance_active(const Driven& self) {
  for (size_t i = 0; i < active_.size();) {
    Driven* const group = active_[i];
    if (group == &self || group->advance_for_others(/*thorough=*/false)) {
      ++i;
      continue;
    }
    group->is_active_ = false;
    active_[i] = active_.back();
    active_.pop_back();
  }
}

void Engine::advance_all_thoroughly() {
  for (Driven* const group : attached_) {
    if (group->advance_for_others(/*thorough=*/true)) activate(*group);
  }
}

void Engine::ring_own_bells() {
  for (Doorbell* const bell : bells_) ring(*bell);
}

void Engine::yield() {
  mutex_.unlock();
  ::sched_yield();
  mutex_.lock();
}

Engine::Sleeper::Sleeper(Engine& engine, bool waits)
    : engine_(engine),
      first_(engine.bells_.front()),
      waits_(waits ? 1 : 0),
      first_rings_(first_->rings.load(std::memory_order_relaxed)) {
  engine_.sleeping_.push_back(this);
  first_->sleeping.fetch_add(1, std::memory_order_relaxed);
  first_->waiting.fetch_add(waits_, std::memory_order_relaxed);
  for (size_t i = 1; i < engine_.bells_.size(); ++i) {
    more_.push_back(engine_.bells_[i]);
    more_rings_.push_back(more_.back()->rings.load(std::memory_order_relaxed));
    more_.back()->sleeping.fetch_add(1, std::memory_order_relaxed);
    more_.back()->waiting.fetch_add(waits_, std::memory_order_relaxed);
  }
  // Pairs with the fence before ring(): either the peer sees the sleeper, or the sleeper what the peer did.
  full_fence();
}

Engine::Sleeper::~Sleeper() {
  std::erase(engine_.sleeping_, this);
  const auto leave = [&](Doorbell& bell) {
    bell.sleeping.fetch_sub(1, std::memory_order_relaxed);
    bell.waiting.fetch_sub(waits_, std::memory_order_relaxed);
  };
  if (first_ != nullptr) leave(*first_);
  for (Doorbell* const bell : more_) leave(*bell);
}

void Engine::Sleeper::forget(const Doorbell& bell) {
  if (first_ == &bell) first_ = nullptr;
  for (size_t i = more_.size(); i-- > 0;) {
    if (more_[i] != &bell) continue;
    more_.erase(more_.begin() + static_cast<ptrdiff_t>(i));
    more_rings_.erase(more_rings_.begin() + static_cast<ptrdiff_t>(i));
  }
}

std::vector<FutexWord> Engine::Sleeper::words() const {
  if (first_ == nullptr) return {};
  std::vector<FutexWord> words{{&first_->rings, first_rings_}};
  for (size_t i = 0; i < more_.size(); ++i) words.push_back({&more_[i]->rings, more_rings_[i]});
  return words;
}

void Engine::sleep_on(const Sleeper& sleeper, std::chrono::nanoseconds longest) {
  const auto words = sleeper.words();
  if (words.empty()) return;
  mutex_.unlock();
  if (words.size() == 1) {
    futex_wait(*words.front().word, words.front().expected, longest);
  } else {
    futex_wait_any(words, longest);
  }
  mutex_.lock();
}

}  // namespace lockstep::shm
