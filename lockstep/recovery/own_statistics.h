// The running statistics that a rank takes of its own batches (BatchNorm): they outlive its process.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/recovery/shard_vault.h"

namespace lockstep::detail {

/// Kept in a vault with each step: before this rank agrees with the others that a backward has ended, and when its part of the
/// step is done. So whoever has gone on finds there what the rank that died had then. One thread at a time.
class OwnStatistics {
 public:
  /// `tensors`: on the CPU, contiguous; the same number on all ranks. They live as long as this. `number`: of the vault.
  OwnStatistics(std::vector<at::Tensor> tensors, shm::SetupLog& log, size_t number);

  /// They are what holds after `steps`, if that many end. `is_end`: this rank has done its part of that step.
  void keep(int64_t steps, bool is_end = false);
  /// So many have ended.
  void commit(int64_t steps);
  /// They become what they were when `steps` had ended. Called by all ranks of `group`, rank `donor` of which has gone on from
  /// there; blocks. Throws Error where the rank that died did not come so far.
  void go_to(int64_t steps, const ProcessGroup& group, int donor);

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<std::byte> packed_, written_, committed_;  // now; in the vault; at the last commit()
  ShardVault vault_;
  // Those in the vault belong to so many steps: statistics that a step leaves alone are not written again. -1: nothing yet.
  int64_t written_at_ = -1, committed_at_ = -1;
  int64_t late_at_ = -1;  // they have changed in that step once they had been kept for it
};

}  // namespace lockstep::detail
