#include "lockstep/comm/group_registry.h"

#include <algorithm>

#include "lockstep/base/mutex.h"

namespace lockstep::detail {
namespace {

struct Entry {
  std::weak_ptr<ProcessGroup::Impl> impl;
  std::string name;
  std::vector<int> ranks;
  bool is_used_beside_steps = false;
};

struct Registry {
  base::Mutex mutex;
  std::vector<Entry> entries LOCKSTEP_GUARDED_BY(mutex);
};

/// Never destroyed: groups may be globals.
Registry& registry() {
  static auto* const registry = new Registry();
  return *registry;
}

}  // namespace

void register_group(const std::shared_ptr<ProcessGroup::Impl>& impl, const std::string& name,
                    const std::vector<int>& ranks) {
  const base::LockGuard lock(registry().mutex);
  std::erase_if(registry().entries, [](const Entry& entry) { return entry.impl.expired(); });
  registry().entries.push_back({impl, name, ranks});
}

void note_use_beside_step(const ProcessGroup::Impl& impl) {
  const base::LockGuard lock(registry().mutex);
  for (Entry& entry : registry().entries) {
    if (entry.impl.lock().get() == &impl) entry.is_used_beside_steps = true;
  }
}

std::vector<RegisteredGroup> groups_within(const std::vector<int>& ranks) {
  const base::LockGuard lock(registry().mutex);
  std::vector<RegisteredGroup> found;
  for (const Entry& entry : registry().entries) {
    const bool is_within = std::all_of(entry.ranks.begin(), entry.ranks.end(), [&](int rank) {
      return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    });
    if (!is_within || entry.ranks.size() < 2) continue;
    if (auto impl = entry.impl.lock())
      found.push_back({std::move(impl), entry.name, entry.ranks, entry.is_used_beside_steps});
  }
  return found;
}

}  // namespace lockstep::detail
