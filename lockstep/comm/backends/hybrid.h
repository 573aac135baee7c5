// The "lockstep" backend over several machines: shared memory inside a machine, an uplink between them.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group/impl.h"

namespace c10d {
class Store;
}

namespace lockstep::backends {

/// Who a rank of the world is, and where the others are.
struct HybridMember {
  int rank = 0;
  std::vector<int> machine_of{};  ///< by rank, the same on all; machines are numbered from 0 without gaps
  std::shared_ptr<ProcessGroup::Impl> local{};  ///< the ranks of this machine, in order, in shared memory
  std::shared_ptr<ProcessGroup::Impl> flat{};   ///< all ranks, over the network
  std::string host{};                           ///< the address of this machine that the others reach
};

/// The group of all ranks, which meet in `store`; it must live as long as the group. Blocks until the machines have
/// connected. Throws CommError.
std::shared_ptr<ProcessGroup::Impl> make_hybrid(HybridMember member, c10::intrusive_ptr<c10d::Store> store,
                                                std::chrono::milliseconds timeout);

}  // namespace lockstep::backends
