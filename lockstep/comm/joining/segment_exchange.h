// How ranks that inherited no segment (torchrun, mpirun, srun, or a wrapper closed it) come to share one.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace c10d {
class Store;
}

namespace lockstep::shm {
class Segment;
}

namespace lockstep::job {
struct LaunchEnvironment;
}

namespace lockstep {

/// Ranks that met share no memory. Thrown on all of them.
class NoSharedMemory : public CommError {
 public:
  explicit NoSharedMemory(const std::string& reason)
      : CommError(reason + "; ranks on other machines or in other containers need the backend gloo"),
        reason_(reason) {}
  const std::string& reason() const { return reason_; }  ///< what() without the advice

 private:
  std::string reason_;
};

/// Through a store, in which no other job has left anything (store_part.h). The node's first rank makes the
/// segment and publishes where it is; the others open it and compare a random number that only its memory
/// holds. Throws NoSharedMemory, on every rank, when one of them does not share memory, and CommError when
/// ranks do not come. Blocks until all ranks of the node are there.
UniqueFd exchange_segment(c10d::Store& store, const job::LaunchEnvironment& launch,
                          std::chrono::milliseconds timeout);

/// A place in a segment that its ranks have joined, for a group of `size` of them that meet in `store` alone:
/// the group's rank 0 claims it, the others are told. Throws CommError on all when there is none. Blocks
/// until rank 0 has called it.
int exchange_area(c10d::Store& store, const shm::Segment& segment, int rank, int size,
                  std::chrono::milliseconds timeout);

/// Without a store, for jobs of one node: the first rank names the segment after the job, and the others look
/// for that name among the open files of this user's processes (/proc). So there is no address that another
/// user could take first. Throws TimeoutError when it does not come. The first rank must keep the descriptor
/// until all have joined the segment.
UniqueFd exchange_segment_locally(const job::LaunchEnvironment& launch, std::chrono::milliseconds timeout);

/// The segment that lockrun handed down as descriptor `fd`. Where a wrapper between lockrun and this process
/// has closed it, it is fetched from an ancestor that still has it. Throws Error when there is none.
UniqueFd inherited_segment(int fd);

}  // namespace lockstep
