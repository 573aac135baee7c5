#include "lockstep/comm/backends/memory_in_flight.h"

#include <algorithm>
#include <span>

namespace lockstep::backends {
namespace {

using base::Extent;

std::vector<Extent> compute_extents(std::span<const at::Tensor> tensors) {
  std::vector<Extent> extents;
  extents.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) extents.push_back(compute_extent(tensor));
  return extents;
}

bool meet(const std::vector<Extent>& some, const std::vector<Extent>& others) {
  return std::any_of(some.begin(), some.end(), [&](const Extent& one) {
    return std::any_of(others.begin(), others.end(), [&](const Extent& other) { return one.meets(other); });
  });
}

}  // namespace

std::vector<MemoryInFlight::WorkPtr> MemoryInFlight::find_before(const Collective& collective) {
  std::vector<WorkPtr> before, others;  // the last to hold one lets its tensors go: not with the lock
  const base::LockGuard lock(mutex_);
  if (uses_.empty()) return before;
  const std::vector<Extent> read = compute_extents(collective.inputs);
  std::vector<Extent> written = compute_extents(collective.outputs);
  for (const Extent& target : compute_extents(collective.targets)) written.push_back(target);
  std::erase_if(uses_, [&](const Use& use) {
    WorkPtr work = use.work.lock();
    if (!work) return true;
    const bool has_ended = work->isCompleted();
    const bool must_end =
        !has_ended && (meet(use.written, written) || meet(use.written, read) || meet(use.read, written));
    (must_end ? before : others).push_back(std::move(work));
    return has_ended;
  });
  return before;
}

void MemoryInFlight::clear() {
  const base::LockGuard lock(mutex_);
  uses_.clear();
}

void MemoryInFlight::add(const WorkPtr& work, const Collective& collective) {
  Use use{c10::weak_intrusive_ptr<c10d::Work>(work), compute_extents(collective.inputs),
          compute_extents(collective.outputs)};
  const base::LockGuard lock(mutex_);
  uses_.push_back(std::move(use));
}

}  // namespace lockstep::backends
