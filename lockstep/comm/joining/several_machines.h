// Joining the ranks of several machines: the one way for init() and for the backend of torch.distributed.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/joining/join.h"
#include "lockstep/comm/process_group/impl.h"

namespace lockstep {

/// Where the ranks are, as all agree.
struct AgreedPlaces {
  std::vector<int> machine_of;
  std::string address;  ///< of this rank, for those of other machines
};

/// All ranks agree which of them share a machine, and the machines try that they reach each other. Sets the group rank if
/// the launcher has not told it. Blocks until all are there. Throws ValueError on all ranks if `backend` is not the same on all.
AgreedPlaces agree_on_places(job::LaunchEnvironment& launch, const c10::intrusive_ptr<c10d::Store>& store,
                             std::chrono::milliseconds timeout, const std::string& backend);

/// Gloo over the network, for all ranks. Blocks until they have connected.
std::shared_ptr<ProcessGroup::Impl> make_flat(const job::LaunchEnvironment& launch,
                                              const c10::intrusive_ptr<c10d::Store>& store,
                                              const std::string& address, std::chrono::milliseconds timeout);

/// The group of all ranks, and the memory of those of this machine.
struct JoinedMachines {
  std::shared_ptr<ProcessGroup::Impl> group{};
  std::shared_ptr<shm::Node> node{};
  std::string why_flat{};  ///< why the group is Gloo over the network; empty: it is not
};

/// What to do where ranks of a machine share no memory.
enum class WithoutMemory { throws, is_flat };

/// Shared memory on each machine, and an uplink between them. `store`: as join_node() has it. Blocks until all ranks of the
/// job are there. `heals`: where the launcher replaces ranks that die, the group is one that goes on then. Throws CommError, and
/// ValueError for a wrong LOCKSTEP_UPLINK. All ranks decide alike.
JoinedMachines join_machines(job::LaunchEnvironment& launch, c10::intrusive_ptr<c10d::Store>& store,
                             const JoinNodeOptions& options,
                             WithoutMemory without_memory = WithoutMemory::throws, bool heals = false);

}  // namespace lockstep
