#include "lockstep/job/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <iterator>
#include <utility>

#include "lockstep/base/mutex.h"

namespace lockstep {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGUSR1, SIGINT};

std::atomic<int> received{0}, interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free);  // a signal handler stores it

struct Caught {
  bool is_caught = false;
  struct sigaction before {};
};
base::Mutex mutex;
int users LOCKSTEP_GUARDED_BY(mutex) = 0;
bool stay_caught LOCKSTEP_GUARDED_BY(mutex) = false;  // after the last user
Caught caught[std::size(kSignals)] LOCKSTEP_GUARDED_BY(mutex);

bool is_of_a_failure(const siginfo_t& info) {
  return info.si_code == SI_QUEUE && info.si_value.sival_int == job::kPeerHasFailed;
}

void note(int signal, siginfo_t* info, void* /*context*/) {
  const bool is_second = signal == SIGINT && interrupts.fetch_add(1, std::memory_order_relaxed) > 0;
  if (is_of_a_failure(*info) || is_second) {
    struct sigaction fatal {};
    fatal.sa_handler = SIG_DFL;
    ::sigaction(signal, &fatal, nullptr);
    ::raise(signal);  // it is blocked until the handler returns
    return;
  }
  int none = 0;
  received.compare_exchange_strong(none, signal, std::memory_order_relaxed);
}

}  // namespace

StopSignals::StopSignals() {
  const base::LockGuard lock(mutex);
  if (users++ > 0) return;
  received = interrupts = 0;
  if (std::exchange(stay_caught, false)) return;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction now {};
    ::sigaction(kSignals[i], nullptr, &now);
    caught[i] = {.is_caught = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL, .before = now};
    if (!caught[i].is_caught) continue;
    struct sigaction ours {};
    ours.sa_sigaction = note;
    ours.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigaction(kSignals[i], &ours, nullptr);
  }
}

StopSignals::~StopSignals() {
  const base::LockGuard lock(mutex);
  if (--users > 0) return;
  for (size_t i = 0; !stay_caught && i < std::size(kSignals); ++i) {
    if (caught[i].is_caught) ::sigaction(kSignals[i], &caught[i].before, nullptr);
  }
  received = 0;
}

void keep_stop_signals_caught() {
  const base::LockGuard lock(mutex);
  stay_caught = users > 0;
}

namespace {

enum class Held : int { nothing, signal, peer_has_failed };
std::atomic<Held> held{Held::nothing};
static_assert(std::atomic<Held>::is_always_lock_free);
int holders LOCKSTEP_GUARDED_BY(mutex) = 0;
Caught held_term LOCKSTEP_GUARDED_BY(mutex);

void hold(int /*signal*/, siginfo_t* info, void* /*context*/) {
  held.store(is_of_a_failure(*info) ? Held::peer_has_failed : Held::signal, std::memory_order_relaxed);
}

}  // namespace

HeldSigterm::HeldSigterm() {
  const base::LockGuard lock(mutex);
  if (holders++ > 0) return;
  held = Held::nothing;
  struct sigaction now {};
  ::sigaction(SIGTERM, nullptr, &now);
  const bool is_ours = (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == note;
  const bool is_default = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL;
  held_term = {.is_caught = is_ours || is_default, .before = now};
  if (!held_term.is_caught) return;
  struct sigaction ours {};
  ours.sa_sigaction = hold;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigaction(SIGTERM, &ours, nullptr);
}

HeldSigterm::~HeldSigterm() {
  const base::LockGuard lock(mutex);
  if (--holders > 0 || !held_term.is_caught) return;
  ::sigaction(SIGTERM, &held_term.before, nullptr);
  const Held what = held.exchange(Held::nothing);
  if (what == Held::nothing) return;
  ::sigqueue(::getpid(), SIGTERM, {.sival_int = what == Held::peer_has_failed ? job::kPeerHasFailed : 0});
}

int stop_signal() { return received.load(std::memory_order_relaxed); }

}  // namespace lockstep
