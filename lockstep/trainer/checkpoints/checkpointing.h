// The checkpoints of a training: written beside it, and complete when all ranks have written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "lockstep/checkpoint/writer.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// How far the ranks are with a checkpoint that is being saved: for each state the number of ranks that are in it.
struct CheckpointVotes {
  double written = 0;     ///< its files are on the disk
  double failed = 0;      ///< they could not be written
  double committing = 0;  ///< the checkpoint gets its name
};

/// Used by all ranks alike, except that each has its own files in a snapshot. The ranks tell each other how far they are
/// in an all-reduce that the training makes in every step anyway: vote() is this rank's part, advance() takes
/// the sums.
class Checkpointing {
 public:
  using Tell = std::function<void(const std::string& line)>;

  /// Makes output_dir. `tell` shows a line to the user, on rank 0. Throws FileError, also naming the ranks that
  /// do not see rank 0's output_dir, as on_all_ranks does. Blocks.
  Checkpointing(const TrainingArguments& arguments, const ProcessGroup& group, Tell tell);

  /// This rank's state; all zero while nothing is in flight.
  CheckpointVotes vote() const;
  /// `votes`: those of all ranks added up. If a rank has failed: throws FileError as on_all_ranks does when save_failure is
  /// stop, otherwise says so and goes on. Throws CommError.
  void advance(const CheckpointVotes& votes);

  /// For the next checkpoint's files, when the one before is complete or given up. Blocks until then; throws as
  /// advance() does.
  checkpoint::Snapshot snapshot();
  /// Writes them in the background. `kept`: checkpoints that stay whatever save_total_limit.
  void begin(int64_t step, checkpoint::Snapshot snapshot, std::set<std::string> kept);
  /// Blocks until nothing is in flight. Throws as advance() does.
  void finish() { wait(IfFailing::try_again); }
  /// Blocks until it is complete or given up, whatever save_failure says. Throws as advance() does.
  void complete() { wait(IfFailing::give_up); }
  /// Gives up what is in flight, on this rank alone: a rank has died, and all save again. All have done so before any
  /// begins. Blocks.
  void drop();
  /// Why the newest checkpoint could not be saved, on all ranks: "checkpoint-20 could not be saved: ..."; empty: it was, or is being
  /// written.
  const std::string& last_failure() const { return last_failure_; }

 private:
  enum class Phase { idle, writing, committing };
  enum class IfFailing : uint8_t { try_again, give_up };
  void wait(IfFailing how);
  void fail();

  ProcessGroup group_;
  std::string on_failure_;
  Tell tell_;
  std::optional<checkpoint::Writer> writer_{};
  Phase phase_ = Phase::idle;
  int64_t step_ = -1;
  std::set<std::string> kept_{};
  bool gives_up_ = false;  ///< a failed save is not tried again
  bool has_told_ = false;  ///< that this save is tried again
  std::string last_failure_{};
};

}  // namespace lockstep
