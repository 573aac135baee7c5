// The signals that lockrun receives, as readable events.
#pragma once

#include <csignal>
#include <optional>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

class Signals {
 public:
  /// Blocks the signals that lockrun handles: those in `ending`, SIGUSR1, SIGUSR2 and SIGTSTP; not those that
  /// its parent had it ignore, as nohup does.
  explicit Signals(const std::vector<int>& ending);

  int fd() const { return fd_.get(); }
  std::optional<int> receive();
  /// The mask before, for the workers.
  const sigset_t& original_mask() const { return original_; }

 private:
  sigset_t original_;
  UniqueFd fd_;
};

}  // namespace lockstep::launcher
