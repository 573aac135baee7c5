#include "lockstep/optim/autocast.h"

#include <ATen/autocast_mode.h>

namespace lockstep {

AutocastGuard::AutocastGuard(bool enabled)
    : was_enabled_(at::autocast::is_autocast_enabled(at::kCPU)),
      previous_dtype_(static_cast<int>(at::autocast::get_autocast_dtype(at::kCPU))) {
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(at::kCPU, enabled);
  if (enabled) at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

AutocastGuard::~AutocastGuard() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled_);
  at::autocast::set_autocast_dtype(at::kCPU, static_cast<at::ScalarType>(previous_dtype_));
}

}  // namespace lockstep
