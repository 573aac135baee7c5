// Joining the ranks of one machine in the memory that they share: the one way for init() and for the backend of
// torch.distributed.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>

namespace c10d {
class Store;
}

namespace lockstep::job {
struct LaunchEnvironment;
}

namespace lockstep::shm {
class Node;
}

namespace lockstep {

/// The part of the launcher's store that belongs to this attempt of the job. Throws CommError as
/// connect_store() does. Blocks until connected.
c10::intrusive_ptr<c10d::Store> launchers_store(const job::LaunchEnvironment& launch,
                                                std::chrono::milliseconds timeout);

/// Options of join_node().
struct JoinNodeOptions {
  std::chrono::milliseconds timeout;
  /// A thread that keeps operations going; default: LOCKSTEP_PROGRESS_THREAD, else none.
  std::optional<bool> progress_thread{};
};

/// Joins the ranks of `launch` in one segment: the one that the launcher has handed down; otherwise one that they
/// find through `store`, in which no other job has left anything, or, if that is null, without a store or through
/// the launcher's, which `store` is then. Blocks until all ranks are there. Throws NoSharedMemory, on every rank, if
/// they share no memory, ValueError if the segment is for another number of ranks, and as segment_exchange.h says.
std::shared_ptr<shm::Node> join_node(const job::LaunchEnvironment& launch,
                                     c10::intrusive_ptr<c10d::Store>& store, const JoinNodeOptions& options);

}  // namespace lockstep
