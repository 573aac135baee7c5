// Names of trackers, as --report-to takes them, and of what they are given.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tracking/tracker.h"

namespace lockstep {

/// The kinds that "tensorboard,csv" names, in this order: tensorboard, wandb, jsonl, csv. "all" is all of them,
/// "none" and "" none. Nothing for any other text.
std::optional<std::vector<std::string>> parse_report_to(std::string_view text);

/// The name under which trackers get a value of a Trainer's log: transformers' rewrite_logs. "loss" is
/// "train/loss", "eval_loss" is "eval/loss".
std::string tracked_name(const std::string& name);

/// The file in output_dir in which a Trainer's run that failed or was stopped says how: time, exit code, error, and the
/// argument that has stopped it.
inline constexpr const char* kRunEndName = "run_end.json";

/// Where the trackers of make_tracker() write.
struct ReportOptions {
  std::filesystem::path directory = ".";  ///< is made where it does not exist
  std::string project = "lockstep";       ///< wandb's
  bool skip_missing = false;              ///< WandbOptions::is_optional
};

/// The tracker of this kind for `run`: files of rank 0 and of a run of one rank are `<directory>/metrics.jsonl`
/// and metrics.csv, those of rank 3 metrics-rank3.jsonl and so on; event files lie in
/// `<directory>/tensorboard/<run id>`, the run of Weights & Biases below `<directory>/wandb`. Throws ValueError
/// for another kind.
std::shared_ptr<Tracker> make_tracker(const std::string& kind, const TrackedRun& run,
                                      const ReportOptions& options);

}  // namespace lockstep
