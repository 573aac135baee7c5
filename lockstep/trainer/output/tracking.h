// The log of a training as trackers get it.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/tracking/tracker.h"
#include "lockstep/trainer/callback.h"

namespace lockstep {

/// Which ranks track.
struct TrackingOptions {
  /// Every rank tracks, under a run of its own (run_of_rank), with its processor load and its peak memory beside
  /// the values that all ranks share. Otherwise rank 0 does.
  bool all_ranks = false;
};

/// Gives `trackers` every entry of the log, under transformers' names for trackers: "loss" is "train/loss",
/// "eval_loss" is "eval/loss"; with epoch, and optimizer steps as the step. Their config is the training's
/// arguments with world_size and parameters, their summary the values that train() returns. The run's id is
/// run_id; without one, that of output_dir/run_id where the job was restarted or the training resumed, and
/// otherwise a new one, which that file then holds. A training that begins at a later step than 0 is resumed
/// there. Ranks that do not track may be given trackers too; they are not used.
///
/// The run ends with the Trainer, so that it has what is evaluated after train(). Its exit code is 0, or if an
/// exception ends train() or destroys the Trainer the one that run_main() gives: 75 for a run that SIGTERM has
/// stopped, 130 after Ctrl-C, 1 or 2 for an error. A run whose process is killed counts as crashed.
std::shared_ptr<TrainerCallback> tracking(std::vector<std::shared_ptr<Tracker>> trackers,
                                          TrackingOptions options = {});

namespace detail {

/// A callback that is told by the Trainer how the run ends.
class KnowsTheEnd {
 public:
  virtual ~KnowsTheEnd() = default;
  /// Called once for each train(). Throws nothing.
  virtual void end(int exit_code) = 0;
};

/// A callback that writes a log and can take back what of it does not count.
class KnowsTheLog {
 public:
  virtual ~KnowsTheLog() = default;
  /// A rank was replaced, this one or another: the log is that of the context's state. In a new process in the place of
  /// on_train_begin(). Starts nothing collective.
  virtual void go_on(CallbackContext& context) = 0;
};

/// The user's callbacks, and behind them those that report_performance and report_to ask for.
std::vector<std::shared_ptr<TrainerCallback>> with_tracking(
    std::vector<std::shared_ptr<TrainerCallback>> callbacks, const TrainingArguments& arguments);

}  // namespace detail
}  // namespace lockstep
