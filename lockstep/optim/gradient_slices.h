// The slices of gradients that a rank averages for its optimizer, and whether a pass may average onto them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "lockstep/optim/zero_partition.h"
#include "lockstep/parallel/hooks/comm_hook.h"

namespace lockstep::detail {

/// What a rank's gradients hold, as FusedZeroRedundancyOptimizer needs to know it.
enum class SliceState : uint8_t {
  fresh,    ///< only this rank's own gradients, or none: a pass may average them
  reduced,  ///< averages in this rank's slices, its own gradients elsewhere: they must be dropped first
  joined,   ///< from `fresh`: no inputs are left (join.h), and nobody calls zero_grad() here
  joined_reduced,  ///< from `reduced`, likewise
  shadowing,       ///< joined, and has taken part in passes of the other ranks
  orphaned,        ///< the optimizer is gone: buckets are averaged in full
};
inline constexpr int kSliceStates = 6;

enum class SliceEvent : uint8_t {
  pass_begins,  ///< the first bucket leaves. Refused in `reduced`: refuses_pass()
  pass_ends,    ///< the last bucket leaves
  zeroed,       ///< the gradients are dropped or zero
  join,
  leave,  ///< join() ends. After `shadowing` the optimizer drops the gradients
  optimizer_gone,
};
inline constexpr int kSliceEvents = 6;

/// The whole table.
constexpr SliceState next_state(SliceState state, SliceEvent event) {
  using enum SliceState;
  constexpr SliceState kNext[kSliceStates][kSliceEvents] = {
      // pass_begins, pass_ends, zeroed, join, leave, optimizer_gone
      {fresh, reduced, fresh, joined, fresh, orphaned},                   // fresh
      {reduced, reduced, fresh, joined_reduced, reduced, orphaned},       // reduced
      {shadowing, shadowing, joined, joined, fresh, orphaned},            // joined
      {shadowing, shadowing, joined, joined_reduced, reduced, orphaned},  // joined_reduced
      {shadowing, shadowing, shadowing, shadowing, fresh, orphaned},      // shadowing
      {orphaned, orphaned, orphaned, orphaned, orphaned, orphaned},       // orphaned
  };
  return kNext[static_cast<int>(state)][static_cast<int>(event)];
}

/// Whether a pass would add gradients to averages that only one rank has.
constexpr bool refuses_pass(SliceState state) { return state == SliceState::reduced; }

/// A rank's slices; its optimizer and the communication hook share them. One thread at a time.
struct GradientSlices {
  std::unordered_map<const at::TensorImpl*, ElementRange>
      own{};  ///< by parameter; empty: another rank has it
  std::vector<at::Tensor> parameters{};
  SliceState state = SliceState::fresh;

  void take(SliceEvent event) { state = next_state(state, event); }
};

/// Called before gradients are computed: takes in whether somebody has dropped or zeroed those of the last pass.
void note_zeroed_gradients(GradientSlices& slices);

/// The communication hook: averages this rank's slices of a bucket in place. Throws Error for a second pass onto
/// gradients of the first.
Future reduce_own_slices(std::shared_ptr<GradientSlices>& slices, GradBucket& bucket);

}  // namespace lockstep::detail
