// What a run writes while it goes: its arguments and its log, in output_dir.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tracking/formats/record_file.h"
#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// On a rank that does not write (`writes` false) its functions do nothing.
class RunLog {
 public:
  RunLog(std::filesystem::path output_dir, bool writes)
      : output_dir_(std::move(output_dir)), writes_(writes) {}
  /// A training begins: throws ValueError where output_dir holds another run than this object's (output_dir.h),
  /// removes what an earlier one left, writes training_args.json and environment.json. With `resumed`, the log of the run that goes on,
  /// log.jsonl has those entries and no later ones. Throws FileError.
  void begin(const TrainingArguments& arguments, const std::vector<LogEntry>* resumed = nullptr);
  /// log.jsonl has a line for each of `history` and no more: its own first ones where it has them, since times in them are
  /// each rank's own. After a rank was replaced.
  void go_on(const std::vector<LogEntry>& history);
  /// A line in log.jsonl. Where it cannot be written, on a full disk for one, that is told once, and it is written with
  /// the next.
  void append(const LogEntry& entry);
  /// How a run has ended that did not make all its steps.
  struct End {
    int exit_code = 0;
    std::string_view error{};       ///< if it has failed: the error, whose first line is kept
    std::string_view stopped_by{};  ///< the argument that has ended it; empty: none
  };
  /// Writes run_end.json with the time and `end`, for `lockstep report`; begin() removes it. A file that cannot be written is
  /// a warning.
  void end(const End& end);

 private:
  std::filesystem::path output_dir_;
  bool writes_;
  bool is_own_ = false;
  RecordFile file_{};
  std::string unwritten_{};
  bool has_warned_ = false;
};

}  // namespace lockstep
