// Logical ranks: the same weights to the bit on any number of processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/parallel/ddp/distributed_data_parallel.h"

namespace lockstep {

class Turns;

/// All processes must give the same options.
struct LogicalRanksOptions {
  int size = 1;        ///< of all logical ranks: a power of two, and a multiple of the number of processes
  uint64_t seed = 42;  ///< of the random numbers
};

/// One forward and backward of one logical rank.
struct LogicalPass {
  int rank = 0;             ///< the logical rank: who takes samples, and numbers of random streams
  int64_t micro_batch = 0;  ///< its number in the step
};

/// The sum of a power of two of numbers, one of each logical rank of a process, in the order of the gradients' sums.
double tree_sum(std::span<const double> values);

/// Divides each step among a fixed number of logical ranks. Whatever a result depends on belongs to them: micro-batches,
/// random numbers, the buffers of the module, and the order in which gradients are added. So a job has the same
/// weights, to the bit, whether it runs as 1, 2, 4 or 8 processes; docs/determinism.md says what that needs beside.
///
///     lockstep::DistributedDataParallel ddp(model);
///     lockstep::LogicalRanks ranks(ddp, {.size = 8, .seed = 42});
///     ranks.run_step(step, /*micro_batches=*/1, [&](const lockstep::LogicalPass& pass) {
///       const auto batch = next_batch_of(pass.rank);
///       at::mse_loss(ddp(batch.input), batch.target).backward();
///     });
///     optimizer.step();
///
/// Process r of p runs logical ranks r * size / p to (r + 1) * size / p - 1, one after another; as many processes as
/// logical ranks cost what DistributedDataParallel costs. SyncBatchNorm normalizes over the batches of all logical ranks:
/// a process that has several runs each on a thread of its own, one at a time, from one such layer to the next. One
/// thread at a time.
class LogicalRanks {
 public:
  /// On all ranks, once, before the first backward pass of `ddp`, which it keeps. Blocks. Throws ValueError where the
  /// processes cannot share `size` equally, or for what would not repeat: parameters on a GPU or in low precision,
  /// sparse gradients, mixed_precision, communication hooks, SyncBatchNorm over other ranks than ddp's. Throws
  /// MismatchError where the processes have different options, numbers of threads or vector instructions.
  template <class M>
  LogicalRanks(DistributedDataParallel<M>& ddp, LogicalRanksOptions options)
      : LogicalRanks(ddp.core_, options) {}

  /// The number of logical ranks of all processes.
  int size() const { return options_.size; }
  /// This process's, in order.
  const std::vector<int>& own() const { return own_; }

  /// Calls `forward_and_backward` for each micro-batch of each of this process's logical ranks, after seeding the default
  /// generator with random_key({seed, rank, step, micro-batch}). It runs one backward on what ddp's forward
  /// returns. Then grad() is the mean over all logical ranks of the sum of a rank's gradients; gradients from before
  /// are dropped. Buffers are those that logical rank 0 leaves, on all processes. `micro_batches`: of each logical rank,
  /// at least 1, the same on all processes. With SyncBatchNorm the function is called on the logical ranks' threads,
  /// never by two at a time, and the module's layers must come in the same order in each. Called by all ranks; blocks.
  /// Throws what the function throws, Error for one without a backward, and CommError.
  void run_step(uint64_t step, int64_t micro_batches,
                const std::function<void(const LogicalPass&)>& forward_and_backward);

  /// Sums `tensor` over the processes, in place, in the order of the gradients' sums: so the tree_sum()s of what own() ranks
  /// have found become that of all. Called by all ranks; blocks. Throws CommError.
  void all_reduce(const at::Tensor& tensor) const;

 private:
  LogicalRanks(std::shared_ptr<detail::DdpCore> core, LogicalRanksOptions options);
  void use_turns();
  void run_pass(uint64_t step, LogicalPass pass,
                const std::function<void(const LogicalPass&)>& forward_and_backward);
  [[noreturn]] static void refuse_no_backward(uint64_t step, LogicalPass pass);
  void run_in_sequence(uint64_t step, int64_t micro_batches,
                       const std::function<void(const LogicalPass&)>& forward_and_backward);
  void run_in_turns(uint64_t step, int64_t micro_batches,
                    const std::function<void(const LogicalPass&)>& forward_and_backward);

  std::shared_ptr<detail::DdpCore> core_;
  LogicalRanksOptions options_;
  std::vector<int> own_;
  std::shared_ptr<Turns> turns_;  // null: no layer needs the batches of several logical ranks at once
};

}  // namespace lockstep
