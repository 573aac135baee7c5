#include "lockstep/trainer/trainer_state.h"

#include <nlohmann/json.hpp>

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

}  // namespace

std::string to_json(const TrainerState& state) {
  nlohmann::json history = nlohmann::json::array();
  for (const auto& entry : state.log_history) history.push_back(entry_json(entry));
  const nlohmann::json out = {{"best_global_step", nullptr},
                              {"best_metric", nullptr},
                              {"best_model_checkpoint", nullptr},
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
  return dump_json(out, {.indent = 2}) + "\n";
}

std::string to_json_line(const LogEntry& entry) { return dump_json(entry_json(entry)); }

void save_trainer_state(const TrainerState& state, const std::filesystem::path& output_dir) {
  write_file_atomically(output_dir / "trainer_state.json", to_json(state));
}

}  // namespace lockstep
