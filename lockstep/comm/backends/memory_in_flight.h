// What the collectives in flight read and write, for an engine that works at several at once.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/memory_overlap.h"
#include "lockstep/comm/process_group/collective.h"

namespace lockstep::backends {

/// Gloo's two threads end the later of two collectives first now and then. If both write one tensor, or one reads what the other
/// writes, the later one must begin only when the earlier one has ended. Thread-safe.
class MemoryInFlight {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// Those in flight that must end before `collective` begins.
  std::vector<WorkPtr> find_before(const Collective& collective);
  void add(const WorkPtr& work, const Collective& collective);
  /// None that was added before is in flight any more.
  void clear();

 private:
  struct Use {
    c10::weak_intrusive_ptr<c10d::Work> work;  // its engine holds it, and it its tensors, until it has ended
    std::vector<base::Extent> read, written;
  };
  base::Mutex mutex_;
  std::vector<Use> uses_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backends
