// The "lockstep" backend over several machines: shared memory inside a machine, an uplink between them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backends/hybrid_health.h"
#include "lockstep/comm/process_group/impl.h"
#include "lockstep/comm/uplink/engine.h"

namespace c10d {
class Store;
}

namespace lockstep::backends {

class HybridState;

/// What all groups of a job over several machines have in common: who is where, and how the ranks are connected.
struct HybridLinks {
  int rank = 0;
  std::vector<int> machine_of{};  ///< by rank, the same on all; machines are numbered from 0 without gaps
  uplink::Engine engine{};
  c10::intrusive_ptr<c10d::Store> store{};  ///< in which the groups meet
  HybridControl control{};                  ///< without a name
};

/// Connects all ranks of the job anew. `part`: names these connections. Blocks until all are there; calls `check` now and then,
/// which may throw to end that. Throws CommError.
HybridLinks connect_machines(HybridLinks links, const c10::intrusive_ptr<c10d::Store>& store,
                             const std::string& part, std::chrono::milliseconds timeout,
                             std::function<void()> check = {});

/// A group as it was before the ranks were connected anew.
struct HybridParts {
  std::string name{};                           ///< the same on all of its ranks, and no other group's
  std::vector<int> members{};                   ///< ranks of the job, by group rank
  std::shared_ptr<ProcessGroup::Impl> local{};  ///< those of this machine
};
/// That group over `links`. Blocks until its machines have connected, for two minutes at most. Throws CommError.
std::shared_ptr<ProcessGroup::Impl> remake_hybrid(HybridParts parts, const HybridLinks& links,
                                                  std::chrono::milliseconds timeout);

/// What moves the bytes of a group that make_hybrid() has made.
uplink::Engine engine_of(const ProcessGroup::Impl& group);
/// The ranks of this machine, of a group over several machines; `group` itself, if it is none.
std::shared_ptr<ProcessGroup::Impl> part_on_machine(const std::shared_ptr<ProcessGroup::Impl>& group);

/// Who a rank of the world is, and where the others are.
struct HybridMember {
  int rank = 0;
  std::vector<int> machine_of{};  ///< by rank, the same on all; machines are numbered from 0 without gaps
  std::shared_ptr<ProcessGroup::Impl> local{};  ///< the ranks of this machine, in order, in shared memory
  std::shared_ptr<ProcessGroup::Impl> flat{};   ///< all ranks, over the network
  uplink::Engine engine{};                      ///< what all have agreed on
};

/// The group of all ranks, which meet in `store`; it must live as long as the group. Blocks until the machines have
/// connected. Throws CommError.
std::shared_ptr<ProcessGroup::Impl> make_hybrid(HybridMember member, c10::intrusive_ptr<c10d::Store> store,
                                                std::chrono::milliseconds timeout);

/// The group over a rank's parts, which have been connected.
std::shared_ptr<ProcessGroup::Impl> wrap_hybrid(std::shared_ptr<HybridState> state,
                                                std::chrono::milliseconds timeout);

/// What makes a group of some ranks of a world that make_hybrid() has made.
struct HybridSubgroup {
  std::vector<int>
      members{};  ///< ranks of the world, in the order of the group; this process's is among them
  /// Makes the group of those of them that are on this rank's machine: their ranks there, and this one's place among those.
  std::function<std::shared_ptr<ProcessGroup::Impl>(const std::vector<int>&, int)> make_local{};
  c10::intrusive_ptr<c10d::Store> store{};  ///< in which the members meet, and nobody else
};

/// Only the members call it, all of them. Null if `world` is none of make_hybrid(). Blocks until they have connected. Throws
/// CommError.
std::shared_ptr<ProcessGroup::Impl> make_hybrid_subgroup(ProcessGroup::Impl& world, HybridSubgroup subgroup,
                                                         std::chrono::milliseconds timeout);

}  // namespace lockstep::backends
