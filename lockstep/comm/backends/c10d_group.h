// Any c10d::Backend (Gloo, NCCL, MPI) behind ProcessGroup.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lockstep/comm/process_group/impl.h"

namespace c10d {
class Store;
}

namespace lockstep::backends {

/// Makes an engine for `size` ranks that meet through a store. Blocks until all are there.
using BackendFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout)>;

/// An engine that a step's failure can interrupt.
class Interruptible {
 public:
  /// What is in flight, here and on the other ranks, ends with an error. Thread-safe.
  virtual void interrupt() noexcept = 0;
  /// After interrupt(): goes on, as new, with the connections of `fresh`, an engine of the same kind and ranks. False if
  /// an operation does not end: then `fresh` must take this one's place.
  virtual bool take_over(c10d::Backend& fresh) = 0;
  /// Has interrupt() been called since it was made, or took over?
  virtual bool is_interrupted() const = 0;

 protected:
  ~Interruptible() = default;
};

/// The store must live as long as the group: groups made of it meet there, too.
std::shared_ptr<ProcessGroup::Impl> wrap_c10d(BackendFactory factory, c10::intrusive_ptr<c10d::Store> store,
                                              int rank, int size, std::chrono::milliseconds timeout);

/// From now on others use the engine of `group` too: no later group takes it over.
void share_engine(ProcessGroup::Impl& group);

/// Gloo over TCP. `host`: the address of this machine that its peers reach. Blocks until all ranks have
/// connected.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout, const std::string& host);

/// NCCL, for tensors on GPUs; each rank uses the GPU that its tensors lie on. Only in builds with
/// LOCKSTEP_NCCL. Throws CommError where there is no GPU.
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout);

}  // namespace lockstep::backends
