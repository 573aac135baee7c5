// Engines of LibTorch (Gloo, NCCL) that outlive the groups they were made for, and are used again.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"

namespace lockstep::backends {

/// An engine, and whether it is as good as new: what it began it also ended.
struct Engine {
  c10::intrusive_ptr<c10d::Backend> backend;
  std::atomic<int64_t> begun = 0, ended_well = 0;
  std::atomic<bool> has_failed = false;  ///< an operation has, since it was made or renewed
  /// Why a rank has interrupted the group, as its store says; empty: none has. The works of before a renewal keep the old
  /// one.
  std::shared_ptr<const std::function<std::string()>> interruption{};
};

/// Gloo's tear-down aborts the process now and then (a thread destroyed while it runs; seen in 3 of 107 jobs
/// of Python's too). So an engine is kept, and goes with the process. Thread-safe.
void keep_for_ever(c10::intrusive_ptr<c10d::Backend> backend);
/// One of these, rank `rank` of `size`, that was interrupted and that nobody else uses: it may take over the connections of a new
/// engine. Null: there is none. Thread-safe.
c10::intrusive_ptr<c10d::Backend> take_kept(int rank, int size);

/// Engines of one group's duplicates that have gone, by the number that all ranks have for them: the next
/// duplicate takes one, so that what is made and destroyed in a loop does not pile up threads and sockets.
/// Thread-safe.
class SpareEngines {
 public:
  SpareEngines() = default;
  SpareEngines(const SpareEngines&) = delete;
  ~SpareEngines();
  void put(int number, std::shared_ptr<Engine> engine);
  std::shared_ptr<Engine> take(int number);
  /// "number:operations " of each: ranks that have begun as many operations agree about what comes next.
  std::string list() const;
  /// The number of the first that stands in all ranks' lists; -1: none.
  static int common(const std::vector<std::string>& lists);

 private:
  mutable base::Mutex mutex_;
  std::map<int, std::shared_ptr<Engine>> engines_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::backends
