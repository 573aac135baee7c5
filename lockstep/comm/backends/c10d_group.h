// Any c10d::Backend (Gloo, NCCL, MPI) behind ProcessGroup.
#pragma once

#include <memory>

#include "lockstep/comm/process_group_impl.h"

namespace c10d {
class Store;
}

namespace lockstep::backends {

std::shared_ptr<ProcessGroup::Impl> wrap_c10d(c10::intrusive_ptr<c10d::Backend> backend,
                                              std::chrono::milliseconds timeout);

/// Gloo over TCP. `host`: the address of this machine that its peers reach. Blocks until all ranks have
/// connected.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout, const std::string& host);

}  // namespace lockstep::backends
