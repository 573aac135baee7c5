// Mixed precision for a scope.
#pragma once

namespace lockstep {

/// While it lives, and if `enabled`, matrix products of this thread on the CPU run in bfloat16
/// (torch.autocast("cpu", torch.bfloat16)). The cached bfloat16 weights are dropped with the outermost guard,
/// so one guard spans one forward pass; backward and the optimizer stand outside. Nests.
class AutocastGuard {
 public:
  explicit AutocastGuard(bool enabled);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  bool was_enabled_;
  int previous_dtype_;
};

}  // namespace lockstep
