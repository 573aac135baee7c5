// One round of averaging gradients: its states, and what leads from one to the next.
#pragma once

#include <cstdint>

namespace lockstep {

enum class PassState : uint8_t {
  idle,    ///< gradients stay on this rank
  armed,   ///< a gradient alone begins a pass: the last forward was synchronised and no pass came since
  open,    ///< a backward that averages is under way
  torn,    ///< an exception ended that backward: the peers may still wait for this rank
  absent,  ///< an exception ended the forward: the peers may be in a pass that this rank has no gradients for
};
inline constexpr int kPassStates = 5;

enum class PassEvent : uint8_t {
  synchronised_forward,
  local_forward,   ///< under no_sync(), or the wrapper goes away
  failed_forward,  ///< a synchronised one, by an exception
  output,          ///< a backward reaches an output of a synchronised forward
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
      // synchronised, local, failed forward, output, gradient, end, exception, recovery
      {armed, idle, absent, open, idle, idle, idle, idle},             // idle
      {armed, idle, absent, open, open, idle, armed, armed},           // armed
      {open, open, open, open, open, idle, torn, open},                // open
      {torn, torn, torn, torn, torn, torn, torn, idle},                // torn
      {absent, absent, absent, absent, absent, absent, absent, idle},  // absent
  };
  return kNext[static_cast<int>(state)][static_cast<int>(event)];
}

}  // namespace lockstep
