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
  /// A line in log.jsonl. Where it cannot be written, on a full disk for one, that is told once, and it is written with
  /// the next.
  void append(const LogEntry& entry);
  /// The run ends with an exit code other than 0: writes run_end.json with the time, the code and the first line of
  /// `error`, for `lockstep report`; begin() removes it. A file that cannot be written is a warning.
  void end(int exit_code, std::string_view error);

 private:
  std::filesystem::path output_dir_;
  bool writes_;
  bool is_own_ = false;
  RecordFile file_{};
  std::string unwritten_{};
  bool has_warned_ = false;
};

}  // namespace lockstep
