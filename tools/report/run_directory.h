// What lies in the directory of a run, whoever wrote it: a Trainer, or the trackers of a loop by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/report/job_events.h"
#include "tools/report/series.h"

namespace lockstep::tools {

struct SavedCheckpoint {
  std::string name{};
  int64_t step = 0;
  uint64_t bytes = 0;
  int world_size = 1;
  double written = 0;       ///< seconds since 1970
  bool can_resume = false;  ///< it is whole, and holds more than the model
  bool is_best = false;
  std::string problem{};  ///< why it does not count; empty where it does
};

/// Milliseconds that a rank spent on each part of a step, on average, by name: "data", "forward" and so on.
struct TimeParts {
  std::string rank{};
  std::vector<std::pair<std::string, double>> parts{};
  std::string source{};  ///< "timeline" or "log"
};

using Texts = std::map<std::string, std::string>;

struct RunDirectory {
  std::filesystem::path path{};
  std::string source{};  ///< the file that the history was read from
  std::string name{}, id{};
  std::string status{};  ///< "finished", "stopped at step 12", "failed", "not finished"; empty: nothing tells
  std::string detail{};  ///< "can be resumed", "exit code 1"; may be empty
  std::string status_kind{};                 ///< "good", "bad", "wait"; empty: none
  std::string error{};                       ///< with which it has failed; may be empty
  std::optional<double> started{}, ended{};  ///< seconds since 1970
  std::optional<double> duration{};          ///< seconds
  int64_t steps = 0;                         ///< done
  std::optional<int64_t> max_steps{};        ///< planned
  int world_size = 1;
  std::map<int, History> ranks{};  ///< rank 0, and others that have tracked
  std::map<std::string, double> results{};
  Texts arguments{}, environment{};
  std::vector<SavedCheckpoint> checkpoints{};  ///< by step
  std::vector<TimeParts> time_parts{};
  JobEvents events{};
  size_t damaged_lines = 0;
  /// Values in all series.
  size_t points() const;
};

/// Reads metrics.jsonl, else metrics.csv, else log.jsonl, and what lies beside; a run that ended before it logged
/// anything has no curves. Of a run that still goes, an unfinished last line is left out. `timeline`: a file of LOCKSTEP_TIMELINE; default: timeline.json there, if any.
/// `event_log`: of `lockrun --event-log`; default: events.jsonl there, if any, which may be all that there is.
/// Throws FileError for a directory that holds no run, naming what was looked for.
RunDirectory read_run_directory(const std::filesystem::path& path, const std::filesystem::path& timeline = {},
                                const std::filesystem::path& event_log = {});

}  // namespace lockstep::tools
