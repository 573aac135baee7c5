// The signals that lockrun receives, as readable events.
#pragma once

#include <csignal>
#include <optional>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

class Signals {
 public:
  /// Blocks the signals that lockrun handles (not those that its parent had it ignore, as nohup does).
  Signals();

  int fd() const { return fd_.get(); }
  std::optional<int> receive();
  /// The mask before, for the workers.
  const sigset_t& original_mask() const { return original_; }

 private:
  sigset_t original_;
  UniqueFd fd_;
};

}  // namespace lockstep::launcher
