// Copies the buffers of one rank's module to all others in one operation.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// One thread at a time.
class BufferSync {
 public:
  BufferSync(ProcessGroup group, std::vector<at::Tensor> buffers);
  /// Leaves the buffers of rank `source` in those of every rank. Blocks the others until they have them; the
  /// source only until they have taken those of the time before: it has nothing to wait for.
  void broadcast(int source);
  bool empty() const { return buffers_.empty(); }

 private:
  ProcessGroup group_;
  std::vector<at::Tensor> buffers_;
  at::Tensor packed_;               // bytes, shared by the ranks
  std::vector<at::Tensor> places_;  // of the buffers in it
  std::shared_ptr<Work> sent_;      // what this rank broadcast last
};

}  // namespace lockstep
