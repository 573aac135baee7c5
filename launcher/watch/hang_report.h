// Tells of ranks that hang, and of where all ranks are then.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/output/output.h"
#include "launcher/output/report.h"
#include "launcher/watch/hang_watch.h"
#include "launcher/watch/stacks.h"
#include "lockstep/shm/segment.h"

namespace lockstep::launcher {

class HangReport {
 public:
  /// `timeout`: --hang-timeout in seconds; `ends_the_job`: --hang-action end; `first_rank`: this machine's;
  /// `is_all`: there are no other machines; `stacks_path`: the file for the ranks' stacks; empty: they go to
  /// standard error.
  HangReport(double timeout, bool ends_the_job, int first_rank, bool is_all, std::string stacks_path)
      : watch_(timeout, first_rank, is_all), may_end_(ends_the_job), stacks_path_(std::move(stacks_path)) {}

  /// Seconds until look() wants to be called again; negative: never.
  double interval() const { return watch_.interval(); }
  /// Compares the ranks' records, if it is time to; false: it is not.
  bool look(const shm::Segment& segment, const std::vector<WorkerResult>& workers, Output& output);
  /// The ranks here, where they make no progress and look() has found no hang among them.
  std::optional<QuietRanks> quiet() const { return watch_.quiet(); }
  /// Tells of a hang that the ranks of several machines have, in the words `text`: in a line, if
  /// `is_said_here`, and of where the ranks here are. `ends_here`: where --hang-action end is given, it is this
  /// machine that ends the job.
  void tell(const std::string& text, bool is_said_here, bool ends_here, const shm::Segment& segment,
            const std::vector<WorkerResult>& workers, Output& output);
  /// Nobody had a chance to make progress until `now`.
  void forgive(double now) { watch_.forgive(now); }

  /// The hang that was told since the last call, in words; else empty.
  std::string take_told() { return std::exchange(told_, ""); }

  /// Whether the job is to end because of a hang, and the ranks' stacks are not being gathered.
  bool has_told_all() const { return !end_reason_.empty() && !stacks_; }
  /// Nobody wants the stacks any more.
  void end_stacks() { stacks_.reset(); }

  int fd() const { return stacks_ ? stacks_->fd() : -1; }  ///< to poll for reading
  /// Takes what fd() has, and prints it when that is all.
  void take_stacks(Output& output);
  /// Which ranks hung and what they were doing, where --hang-action end ends the job because of it; else
  /// empty.
  const std::string& end_reason() const { return end_reason_; }

 private:
  HangWatch watch_;
  bool may_end_;
  std::string stacks_path_;
  double looked_at_ = 0;
  std::optional<StackDump> stacks_;
  std::string end_reason_, told_;
};

}  // namespace lockstep::launcher
