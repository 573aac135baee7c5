// One round of averaging gradients: its states, what leads from one to the next, and what is settled when it begins.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

namespace lockstep {

enum class PassState : uint8_t {
  idle,   ///< gradients stay on this rank
  armed,  ///< a gradient alone begins a pass: the last forward was synchronized and no pass came since
  open,   ///< a backward that averages is under way
  torn,   ///< an exception ended that backward: the peers may still wait for this rank
  absent,  ///< an exception ended the forward or what came after it: the peers may be in a pass of which this rank has
           ///< no gradients
};
inline constexpr int kPassStates = 5;

enum class PassEvent : uint8_t {
  synchronized_forward,
  local_forward,   ///< under no_sync(), or the wrapper goes away
  failed_forward,  ///< a synchronized one ended in an exception, or its outputs died of one before a backward
  output,          ///< a backward reaches an output of a synchronized forward
  gradient,        ///< a parameter gets one
  end,             ///< the pass has ended, with the peers
  exception,       ///< the backward has gone without an end
  recovery,        ///< what an exception left has been settled with the peers
};
inline constexpr int kPassEvents = 8;

/// The whole table. A pass begins where this leads to `open` from another state.
constexpr PassState next_state(PassState state, PassEvent event) {
  using enum PassState;
  constexpr PassState kNext[kPassStates][kPassEvents] = {
      // synchronized, local, failed forward, output, gradient, end, exception, recovery
      {armed, idle, absent, open, idle, idle, idle, idle},             // idle
      {armed, idle, absent, open, open, idle, armed, armed},           // armed
      {open, open, open, open, open, idle, torn, open},                // open
      {torn, torn, torn, torn, torn, torn, torn, idle},                // torn
      {absent, absent, absent, absent, absent, absent, absent, idle},  // absent
  };
  return kNext[static_cast<int>(state)][static_cast<int>(event)];
}

/// What a rank is in a pass.
enum class Role : char {
  active = 'a',
  failed = 'f',   ///< an exception cut its backward short
  absent = 'n',   ///< an exception came before its backward: it has not begun
  joined = 'j',   ///< it has no inputs left (join.h)
  changed = 'c',  ///< its module is no longer the one that was wrapped: it has no gradients that fit
};

/// The pass of one reducer: where it stands, and what holds for the round under way.
struct Pass {
  using Clock = std::chrono::steady_clock;

  PassState state = PassState::idle;
  std::weak_ptr<const void> backward{};  ///< alive while that runs
  Role role = Role::active;
  bool has_ended = false;      ///< its backward has, by an exception or not
  bool leaves_at_end = false;  ///< no bucket leaves before the end
  bool has_failed = false;     ///< as all ranks know: an exception cut it short on some rank
  int divisor = 0;  ///< of the sum; 0: the size of the group, within which the reduction itself averages
  bool is_timed = false;
  Clock::time_point start{}, first_bucket{};  ///< of timed passes: when it began, when the first bucket left
  int64_t traced_start = 0;                   ///< for the timeline; 0: none is kept

  /// Applies an event that begins no pass.
  void take(PassEvent event) { state = next_state(state, event); }
  /// Whether `event` begins a pass, or belongs to the one under way.
  bool leads_to_pass(PassEvent event) const { return next_state(state, event) == PassState::open; }
  /// A backward whose end another thread has seen is torn, too.
  bool is_torn() const {
    return state == PassState::torn || (state == PassState::open && backward.expired());
  }
  /// Did an exception end it here?
  bool has_been_cut() const { return role == Role::failed || role == Role::absent; }
  /// Is a backward under way that averages?
  bool averages() const { return state == PassState::open && !backward.expired(); }
  /// Now, in a timed pass.
  Clock::time_point moment() const { return is_timed ? Clock::now() : Clock::time_point{}; }
};

}  // namespace lockstep
