// The log entries of a run as JSON lines, and the results files.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/trainer/trainer_state.h"

namespace lockstep {

/// Makes `path` and its parents where they are missing. Throws FileError naming it.
void make_directory(const std::filesystem::path& path);

/// Appends whole lines to a file: each is one write, so several processes may share a file.
class LineFile {
 public:
  /// Creates the file, or with `truncate` empties it. Throws FileError naming it.
  LineFile(std::filesystem::path path, bool truncate);
  /// Appends `line` and a new line. Throws FileError.
  void append(const std::string& line);

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

/// Writes `metrics` to `output_dir/<split>_results.json` ("train", "eval", "test"), and puts them into
/// `output_dir`/all_results.json in place of that split's and beside those of other splits: Hugging Face's save_metrics.
/// Throws FileError.
void save_metrics(const std::filesystem::path& output_dir, const std::string& split, const Metrics& metrics);

}  // namespace lockstep
