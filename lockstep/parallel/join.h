// Training when ranks have different numbers of batches.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {

/// Names, meanings and defaults are those of DistributedDataParallel.join in Python.
struct JoinOptions {
  /// Divide the sum of gradients by the number of ranks of the group; otherwise by the number of those that
  /// still have inputs.
  bool divide_by_initial_world_size = true;
  /// false: `body` is only called.
  bool enable = true;
  /// When the first rank runs out of inputs, throw Error on all ranks.
  bool throw_on_early_termination = false;
};

/// A wrapped module, whatever its type, as join() takes it.
class Joinable {
 public:
  template <class M>
  Joinable(DistributedDataParallel<M>& ddp) : core_(ddp.core_) {}  // NOLINT: implicit by design
  detail::DataParallelCore& core() const { return *core_; }

 private:
  std::shared_ptr<detail::DataParallelCore> core_;
};

/// Calls `body`, which trains on this rank's inputs; once it is done, takes part in the other ranks' forward
/// and backward passes with zeros until all are done. Then the models of the rank that was last are copied to
/// all (the highest one, when several were). Optimizers are not: their state is each rank's own.
///
///     lockstep::join({ddp}, [&] { for (auto& batch : loader) train(batch); });
///
/// All ranks must give the same models, of the same group (ValueError otherwise), and `body` must do nothing
/// else that is collective: forward and backward of the models may come in any order that is the same on all
/// ranks. Inside, buckets leave at the end of backward. The gradients of a rank that has joined are undefined
/// afterwards. An exception in `body` is passed on at once. Blocks until all ranks are done.
void join(const std::vector<Joinable>& models, const std::function<void()>& body, JoinOptions options = {});

}  // namespace lockstep
