// The text that shows how far a training is. Pure; training_bar.h puts it on the terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// What is known about the run at one moment.
struct Progress {
  int64_t step = 0;
  int64_t total_steps = 0;
  int64_t samples_done = 0;  ///< of all ranks together
  int64_t tokens_done = 0;   ///< elements of the batches' "input_ids", of all ranks together
  double epoch = 0;
  std::optional<double> loss{};  ///< mean of the global batches since it was last logged
  std::optional<double> learning_rate{};
  std::optional<double> grad_norm{};
  std::optional<double> samples_per_second{};  ///< of all ranks together
  std::optional<double> seconds{};             ///< since the run began or was resumed
  std::optional<double> seconds_left{};
};

/// A bar of at most `columns` columns: percentage, bar, step/total, epoch, loss, time spent and left, samples/s. Where it
/// is narrow, speed, epoch and time spent go first, then the bar; loss and time left stay the longest. Without `unicode`
/// it is drawn with '#'.
std::string render_bar(const Progress& progress, int columns, bool unicode);

/// Writes the same moment as a line for a log file, with epoch, learning rate and gradient norm.
std::string render_log_line(const Progress& progress);

}  // namespace lockstep
