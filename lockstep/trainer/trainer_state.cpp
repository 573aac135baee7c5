#include "lockstep/trainer/trainer_state.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep {
namespace {

nlohmann::json entry_json(const LogEntry& entry) {
  nlohmann::json out(entry.values);
  out["epoch"] = entry.epoch;
  out["step"] = entry.step;
  return out;
}

template <class T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

template <class T>
void read(const nlohmann::json& object, const char* name, T& value) {
  if (const auto found = object.find(name); found != object.end() && !found->is_null()) {
    value = found->get<T>();
  }
}

template <class T>
void read(const nlohmann::json& object, const char* name, std::optional<T>& value) {
  if (const auto found = object.find(name); found != object.end() && !found->is_null()) {
    value = found->get<T>();
  }
}

// JSON has no number for a value that is not one: null.
LogEntry read_entry(const nlohmann::json& object) {
  LogEntry entry;
  read(object, "epoch", entry.epoch);
  read(object, "step", entry.step);
  for (const auto& [name, value] : object.items()) {
    if (name == "epoch" || name == "step") continue;
    entry.values[name] = value.is_null() ? std::nan("") : value.get<double>();
  }
  return entry;
}

}  // namespace

std::string to_json(const TrainerState& state) {
  nlohmann::json history = nlohmann::json::array();
  for (const auto& entry : state.log_history) history.push_back(entry_json(entry));
  const nlohmann::json out = {
      {"best_global_step", or_null(state.best_global_step)},
      {"best_metric", or_null(state.best_metric)},
      {"best_model_checkpoint",
       state.best_model_checkpoint.empty() ? nlohmann::json() : nlohmann::json(state.best_model_checkpoint)},
      {"epoch", state.epoch},
      {"eval_steps", state.eval_steps},
      {"global_step", state.global_step},
      {"is_hyper_param_search", false},
      {"is_local_process_zero", true},
      {"is_world_process_zero", true},
      {"log_history", history},
      {"logging_steps", state.logging_steps},
      {"max_steps", state.max_steps},
      {"num_input_tokens_seen", 0},
      {"num_train_epochs", state.num_train_epochs},
      {"save_steps", state.save_steps},
      {"stateful_callbacks", nlohmann::json::object()},
      {"total_flos", 0.0},
      {"train_batch_size", state.train_batch_size},
      {"trial_name", nullptr},
      {"trial_params", nullptr}};
  return dump_json(out, {.indent = 2, .replace_invalid_utf8 = true}) + "\n";  // the name of a directory
}

TrainerState trainer_state_from_json(std::string_view text, const std::string& source) {
  const nlohmann::json object = parse_json(text);
  TrainerState state;
  try {
    if (!object.is_object()) throw ValueError("expected a JSON object");
    read(object, "best_global_step", state.best_global_step);
    read(object, "best_metric", state.best_metric);
    read(object, "best_model_checkpoint", state.best_model_checkpoint);
    read(object, "epoch", state.epoch);
    read(object, "eval_steps", state.eval_steps);
    read(object, "global_step", state.global_step);
    read(object, "logging_steps", state.logging_steps);
    read(object, "max_steps", state.max_steps);
    read(object, "num_train_epochs", state.num_train_epochs);
    read(object, "save_steps", state.save_steps);
    read(object, "train_batch_size", state.train_batch_size);
    if (const auto history = object.find("log_history"); history != object.end()) {
      for (const auto& entry : *history) state.log_history.push_back(read_entry(entry));
    }
  } catch (const std::exception& error) {
    throw ValueError(fmt::format("{} is no trainer_state.json: {}", source, error.what()));
  }
  return state;
}

std::string to_json_line(const LogEntry& entry) { return dump_json(entry_json(entry)); }

void save_trainer_state(const TrainerState& state, const std::filesystem::path& output_dir) {
  write_file_atomically(output_dir / "trainer_state.json", to_json(state));
}

}  // namespace lockstep
