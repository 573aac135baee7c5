// Tells of ranks that hang, and of where all ranks are then.
#pragma once

#include <optional>
#include <vector>

#include "launcher/attempt.h"
#include "launcher/hang_watch.h"
#include "launcher/output.h"
#include "launcher/stacks.h"
#include "lockstep/comm/shm/segment.h"

namespace lockstep::launcher {

class HangReport {
 public:
  explicit HangReport(const Job& job)
      : job_(job), watch_(job.options.hang_timeout, job.environment.first_rank) {}

  /// Seconds until look() wants to be called again; negative: never.
  double interval() const { return watch_.interval(); }
  /// Compares the ranks' records, if it is time to.
  void look(const shm::Segment& segment, const std::vector<WorkerResult>& workers, Output& output);
  /// Nobody had a chance to make progress until `now`.
  void forgive(double now) { watch_.forgive(now); }

  int fd() const { return stacks_ ? stacks_->fd() : -1; }  ///< to poll for reading
  /// Takes what fd() has; true when all has been told and the job is to end because of it.
  bool take_stacks(Output& output);
  bool ends_the_job() const { return hung_; }

 private:
  const Job& job_;
  HangWatch watch_;
  double looked_at_ = 0;
  std::optional<StackDump> stacks_;
  bool hung_ = false;
};

}  // namespace lockstep::launcher
