// The process groups of this process, for a step that fails: it interrupts and renews all that it may have used.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::detail {

struct RegisteredGroup {
  std::shared_ptr<ProcessGroup::Impl> impl;
  std::string name;        ///< the same on all of its ranks, and no other group's
  std::vector<int> ranks;  ///< of the job, by group rank
  bool is_used_beside_steps =
      false;  ///< another thread than that of a step has used it while the step went on
};

/// Thread-safe. The registry keeps no group alive.
void register_group(const std::shared_ptr<ProcessGroup::Impl>& impl, const std::string& name,
                    const std::vector<int>& ranks);

/// A thread beside that of the step which goes on calls a collective of the group. Thread-safe.
void note_use_beside_step(const ProcessGroup::Impl& impl);

/// Those that still live and have only ranks of `ranks`, at least two, in the order in which they were made. Thread-safe.
std::vector<RegisteredGroup> groups_within(const std::vector<int>& ranks);

}  // namespace lockstep::detail
