// The "lockstep" backend: collectives in the memory that the ranks of one node share.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/process_group/impl.h"
#include "lockstep/shm/node.h"

namespace lockstep::backends {

/// The group of all ranks of `node`. Does not block.
std::shared_ptr<ProcessGroup::Impl> make_shared_memory(std::shared_ptr<shm::Node> node,
                                                       std::chrono::milliseconds timeout);

/// A group of some of them, ranks of the node in the order of the group; `rank`: this one's place among them.
/// `area`: where the group lives in the segment, claimed for all of them. Does not block.
std::shared_ptr<ProcessGroup::Impl> make_shared_memory(std::shared_ptr<shm::Node> node, int area,
                                                       std::vector<int> members, int rank,
                                                       std::chrono::milliseconds timeout);

/// Where a group of this backend lives in its segment.
int area_of(const ProcessGroup::Impl& group);

}  // namespace lockstep::backends
