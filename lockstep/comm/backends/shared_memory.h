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

/// A rank of a group of this backend that has sent this one a message of the tag which no receive has found; -1: none.
/// `source`: the only one to look at; -1: all. Does not block.
int find_sender(const ProcessGroup::Impl& group, int source, int tag);

/// Blocks until all that this rank has started in a group of this backend, and that nobody waits for any more, has ended; or
/// until nothing of it has ended for `longest`: false then.
bool end_abandoned(ProcessGroup::Impl& group, std::chrono::milliseconds longest);

/// Impl::finish_started() of a group of this backend, for no longer than that: false where something has not ended then, which
/// goes on.
bool finish_started_within(ProcessGroup::Impl& group, std::chrono::milliseconds longest);

/// A group of this backend is a part of one over several machines: what its ranks wait for comes over a network.
void expect_network(ProcessGroup::Impl& group);

/// Where a group of this backend lives in its segment.
int area_of(const ProcessGroup::Impl& group);

/// What empty_common() of a group takes in the arena of its rank 0, the owner.
size_t bytes_of_common(at::IntArrayRef sizes, at::ScalarType dtype);
/// Such a tensor, at `offset` in the segment, for one of the ranks that it counts.
at::Tensor map_common(const std::shared_ptr<shm::Node>& node, int64_t offset, at::IntArrayRef sizes,
                      at::ScalarType dtype, bool is_owner);

}  // namespace lockstep::backends
