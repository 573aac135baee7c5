// The record of a run: trainer_state.json as Hugging Face writes it, and the same entries as JSON lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Values of one moment by name ("loss", "learning_rate", "eval_accuracy", ...).
using Metrics = std::map<std::string, double>;

/// One entry of log_history.
struct LogEntry {
  Metrics values;
  double epoch = 0;
  int64_t step = 0;
};

/// transformers.TrainerState.
struct TrainerState {
  double epoch = 0;         ///< epochs done, with a fraction
  int64_t global_step = 0;  ///< optimizer steps done
  int64_t max_steps = 0;
  int64_t num_train_epochs = 0;
  int64_t train_batch_size = 0;  ///< per rank
  int64_t logging_steps = 500;
  int64_t eval_steps = 500;
  int64_t save_steps = 500;
  std::optional<double> best_metric{};        ///< TrainingArguments::best_metric()'s best value so far
  std::optional<int64_t> best_global_step{};  ///< the step of the evaluation that gave it
  std::string best_model_checkpoint{};        ///< that step's checkpoint; empty: it has none
  std::vector<LogEntry> log_history;
};

/// The text of trainer_state.json: keys sorted, two spaces, a new line at the end.
std::string to_json(const TrainerState& state);
/// Reads what to_json() or transformers wrote. Throws ValueError that begins with `source`.
TrainerState trainer_state_from_json(std::string_view text, const std::string& source);
/// One entry as a line of JSON, without the new line.
std::string to_json_line(const LogEntry& entry);

/// Writes `state` to `output_dir`/trainer_state.json atomically. Throws FileError.
void save_trainer_state(const TrainerState& state, const std::filesystem::path& output_dir);

}  // namespace lockstep
