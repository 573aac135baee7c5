#include "lockstep/trainer/run/run_progress.h"

#include <optional>
#include <string>

#include "lockstep/trainer/trainer_state.h"

namespace lockstep::detail {
namespace {

constexpr const char* kOfProgress = "the state of a training";

void set(StateDict& state, const char* name, const std::optional<double>& value) {
  if (value) state.scalars[name] = *value;
}

std::optional<double> find(const StateDict& state, const char* name) {
  if (!state.scalars.contains(name)) return std::nullopt;
  return state.get<double>(kOfProgress, name);
}

}  // namespace

RunPart RunProgress::next_epoch(const TrainingPlan& plan) const {
  const bool goes_on = position.epoch < plan.num_train_epochs && !control.should_training_stop;
  return goes_on ? RunPart::epoch_begin : RunPart::end;
}

RunPart RunProgress::next_step(const TrainingPlan& plan) const {
  const bool goes_on = position.update_steps_done < plan.update_steps_per_epoch &&
                       !control.should_training_stop && !control.should_epoch_stop;
  return goes_on ? RunPart::step : RunPart::epoch_end;
}

StateDict RunProgress::common() const {
  StateDict state;
  state.add("position", position.state_dict());
  state.scalars["part"] = static_cast<int64_t>(part);
  state.scalars["evaluation_step"] = evaluation_step;
  state.scalars["last_saved_step"] = last_saved_step;
  state.scalars["is_out_of_time"] = is_out_of_time;
  state.scalars["signal"] = static_cast<int64_t>(signal);
  return state;
}

void RunProgress::load_common(const StateDict& state) {
  position = TrainingPosition::from(state.part("position"));
  part = static_cast<RunPart>(state.get<int64_t>(kOfProgress, "part"));
  evaluation_step = state.get<int64_t>(kOfProgress, "evaluation_step");
  last_saved_step = state.get<int64_t>(kOfProgress, "last_saved_step");
  is_out_of_time = state.get<bool>(kOfProgress, "is_out_of_time");
  signal = static_cast<int>(state.get<int64_t>(kOfProgress, "signal"));
}

StateDict RunProgress::own() const {
  StateDict state;
  state.scalars["seconds_evaluating"] = seconds_evaluating;
  state.scalars["start"] = start;
  for (const auto& [name, value] : evaluation) state.scalars["evaluation." + name] = value;
  TrainerState complete;
  best.tell(complete);
  set(state, "best.metric", complete.best_metric);
  if (complete.best_global_step) state.scalars["best.step"] = *complete.best_global_step;
  state.scalars["best.checkpoint"] = complete.best_model_checkpoint;
  state.scalars["progress.step"] = progress.step;
  state.scalars["progress.total_steps"] = progress.total_steps;
  state.scalars["progress.samples_done"] = progress.samples_done;
  state.scalars["progress.tokens_done"] = progress.tokens_done;
  state.scalars["progress.epoch"] = progress.epoch;
  set(state, "progress.loss", progress.loss);
  set(state, "progress.learning_rate", progress.learning_rate);
  set(state, "progress.grad_norm", progress.grad_norm);
  set(state, "progress.samples_per_second", progress.samples_per_second);
  set(state, "progress.seconds", progress.seconds);
  set(state, "progress.seconds_left", progress.seconds_left);
  return state;
}

void RunProgress::load_own(const StateDict& state) {
  seconds_evaluating = state.get<double>(kOfProgress, "seconds_evaluating");
  start = state.get<double>(kOfProgress, "start");
  evaluation.clear();
  for (const auto& [name, value] : state.part("evaluation").scalars) {
    evaluation[name] = state.get<double>(kOfProgress, "evaluation." + name);
  }
  TrainerState complete;
  complete.best_metric = find(state, "best.metric");
  if (state.scalars.contains("best.step"))
    complete.best_global_step = state.get<int64_t>(kOfProgress, "best.step");
  complete.best_model_checkpoint = state.get<std::string>(kOfProgress, "best.checkpoint");
  best = BestModel(complete);
  progress = {.step = state.get<int64_t>(kOfProgress, "progress.step"),
              .total_steps = state.get<int64_t>(kOfProgress, "progress.total_steps"),
              .samples_done = state.get<int64_t>(kOfProgress, "progress.samples_done"),
              .tokens_done = state.get<int64_t>(kOfProgress, "progress.tokens_done"),
              .epoch = state.get<double>(kOfProgress, "progress.epoch"),
              .loss = find(state, "progress.loss"),
              .learning_rate = find(state, "progress.learning_rate"),
              .grad_norm = find(state, "progress.grad_norm"),
              .samples_per_second = find(state, "progress.samples_per_second"),
              .seconds = find(state, "progress.seconds"),
              .seconds_left = find(state, "progress.seconds_left")};
}

}  // namespace lockstep::detail
