// The "lockstep" backend: collectives in the memory that the ranks of one node share.
#pragma once

#include <memory>

#include "lockstep/comm/process_group_impl.h"
#include "lockstep/shm/node.h"

namespace lockstep::backends {

/// The group of all ranks of `node`. Does not block.
std::shared_ptr<ProcessGroup::Impl> make_shared_memory(std::shared_ptr<shm::Node> node,
                                                       std::chrono::milliseconds timeout);

}  // namespace lockstep::backends
