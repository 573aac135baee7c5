// The logical ranks of a process where none can go on alone: they take turns.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/parallel/data_parallel/replica_threads.h"
#include "lockstep/parallel/logical/rank_state.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {

namespace timeline {
class TakesTurns;
}

/// Each logical rank has a thread, and one of them runs at a time: from a synchronized batch normalization, in forward
/// or in backward, to the next. There it says what it knows of its part of the batch and hands over to the next one;
/// the last has what all of the process say, exchanges it with the other processes, and hands over to the first.
/// So the order of everything is that of the logical ranks. A process with a single one has no threads.
class Turns final : public detail::BatchExchange {
 public:
  /// `own`: the numbers of this process's logical ranks, of `size` in all. `layers`: what to call them in messages.
  Turns(int size, std::vector<int> own, std::map<const void*, std::string> layers);

  /// Calls work(i) for the i-th of the own ranks, with states[i] in place, and waits for all; the last one's state
  /// stays in place. Where one throws, the others end with an exception at their next synchronized batch
  /// normalization, one after another, and then this throws what the first one threw. One caller at a time.
  void run(std::vector<RankState> states, const std::function<void(size_t)>& work);

  int parts() const override { return size_; }
  /// Both throw Error where the own ranks have come to different places, and in a thread that run() has not started.
  std::vector<at::Tensor> gather(const ProcessGroup& group, Place place, const at::Tensor& own) override;
  at::Tensor sum(const ProcessGroup& group, Place place, const at::Tensor& own) override;

 private:
  using Combine = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
  void run_rank(size_t rank, const std::function<void(size_t)>& work);
  void wait_for_turn(size_t rank);
  void hand_over(size_t rank);
  void check_same(size_t rank, const std::optional<Place>& place);
  std::string in_words(const std::optional<Place>& place) const;
  std::vector<at::Tensor> meet(Place place, const at::Tensor& own, const Combine& combine);

  int size_;
  std::vector<int> own_;
  std::map<const void*, std::string> layers_;
  std::unique_ptr<ReplicaThreads> threads_;

  base::Mutex mutex_;
  std::deque<base::ConditionVariable> wake_;
  size_t turn_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::vector<timeline::TakesTurns*> clocks_;  // each by its own thread
  // By the rank whose turn it is.
  std::vector<RankState> states_;
  std::vector<bool> has_ended_;
  std::vector<at::Tensor> said_;    // at the place where they meet
  std::vector<at::Tensor> answer_;  // to all of them
  std::optional<Place> place_;      // of the first; empty: the end
  std::exception_ptr error_;        // the first
};

}  // namespace lockstep
