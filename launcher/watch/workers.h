// What has become of this machine's ranks.
#pragma once

#include <string>
#include <vector>

#include "launcher/output/report.h"
#include "launcher/process/guardian.h"

namespace lockstep::launcher {

class Workers {
 public:
  /// `count` ranks from `first_rank` on, all of which are to be started.
  Workers(int count, int first_rank);

  const std::vector<WorkerResult>& results() const { return results_; }
  std::vector<WorkerResult> take_results() { return std::move(results_); }
  size_t running() const { return running_; }
  /// Their ranks, with commas between.
  std::string running_ranks() const;

  void started(const Event& event) { result_of(event).pid = event.pid; }
  void not_started() { --running_; }
  /// One that has ended, which nobody was told of, is to be started again.
  void start_again(int local_rank) { results_[static_cast<size_t>(local_rank)].pid = 0; }
  void none_started() { running_ = 0; }
  /// `told_to_end` and `by_passed_signal` as in WorkerResult; `job_started`: in monotonic seconds.
  const WorkerResult& ended(const Event& event, bool told_to_end, bool by_passed_signal, double job_started);
  /// `why`: for which the kernel has killed it; empty: it has not.
  void set_killed_for(const Event& event, const std::string& why) { result_of(event).killed_for = why; }
  const WorkerResult& of(const Event& event) const { return results_[static_cast<size_t>(event.process)]; }

 private:
  WorkerResult& result_of(const Event& event) { return results_[static_cast<size_t>(event.process)]; }
  std::vector<WorkerResult> results_;
  size_t running_;
};

}  // namespace lockstep::launcher
