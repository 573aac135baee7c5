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
  /// What becomes of the lines of an existing file.
  enum class Lines { keep, remove };
  /// Creates the file if it is missing. Throws FileError naming it.
  explicit LineFile(std::filesystem::path path, Lines lines = Lines::keep);
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
