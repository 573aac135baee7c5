// What runs at the events of a training: transformers' callbacks.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/state/state_dict.h"
#include "lockstep/trainer/output/progress_line.h"
#include "lockstep/trainer/trainer_state.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// What callbacks ask of the Trainer. The flags of one rank are those of all: what one sets, all do.
struct TrainerControl {
  bool should_training_stop = false;  ///< after this step
  bool should_epoch_stop = false;     ///< the next epoch begins after this step
  bool should_save = false;           ///< a checkpoint, after this step
  bool should_evaluate = false;       ///< after this step
  bool should_log = false;            ///< after this step
};

/// What a callback sees. References are valid during the call.
struct CallbackContext {
  const TrainingArguments& args;                 ///< the run's arguments
  const TrainerState& state;                     ///< step, epoch, log
  TrainerControl& control;                       ///< what the callback asks for
  torch::nn::Module& model;                      ///< the module, not wrapped
  torch::optim::Optimizer* optimizer = nullptr;  ///< none before training
  const ProcessGroup& group;                     ///< the ranks that train together
  const Progress& progress;          ///< of the last step: its gradients' norm, its learning rate, the speed
  const Metrics* metrics = nullptr;  ///< on_evaluate and on_predict: "eval_loss" and so on
  Metrics* logs = nullptr;           ///< on_log: the entry, to which values may be added
};

/// Derive from it, and give the Trainer an object of your class. The Trainer calls the events in the order of
/// its callbacks, on all ranks, each on the thread that called the Trainer; a callback that communicates must
/// do so on all ranks. An exception ends the run with the callback's name.
///
/// Events, names and order are transformers': step_begin and step_end enclose an optimizer step, substep_end
/// stands after each of its micro-batches but the last, pre_optimizer_step between clipping and the optimizer,
/// optimizer_step after it.
class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;
  /// For messages of errors.
  virtual std::string name() const = 0;
  /// The Trainer is made.
  virtual void on_init_end(CallbackContext&) {}
  /// train() begins.
  virtual void on_train_begin(CallbackContext&) {}
  /// train() ends.
  virtual void on_train_end(CallbackContext&) {}
  /// Before the first step of an epoch.
  virtual void on_epoch_begin(CallbackContext&) {}
  /// After the last step of an epoch.
  virtual void on_epoch_end(CallbackContext&) {}
  /// Before an optimizer step.
  virtual void on_step_begin(CallbackContext&) {}
  /// After each micro-batch of a step but the last.
  virtual void on_substep_end(CallbackContext&) {}
  /// Gradients are clipped; the optimizer has not run.
  virtual void on_pre_optimizer_step(CallbackContext&) {}
  /// The optimizer has run; gradients are still there.
  virtual void on_optimizer_step(CallbackContext&) {}
  /// After an optimizer step.
  virtual void on_step_end(CallbackContext&) {}
  /// After an evaluation; `metrics` has its result.
  virtual void on_evaluate(CallbackContext&) {}
  /// After predict(); `metrics` has its result.
  virtual void on_predict(CallbackContext&) {}
  /// After a checkpoint was begun.
  virtual void on_save(CallbackContext&) {}
  /// Before an entry of the log is written; `logs` may be added to.
  virtual void on_log(CallbackContext&) {}

  /// What it needs to go on where it stopped: saved with every checkpoint by rank 0, and given back to all ranks after
  /// on_train_begin() of a training that resumes.
  virtual StateDict state_dict() const { return {}; }
  /// The opposite; `state` is what state_dict() returned.
  virtual void load_state_dict(const StateDict& /*state*/) {}
};

/// Options of early_stopping().
struct EarlyStoppingOptions {
  int patience = 1;      ///< evaluations in a row without an improvement that end the training
  double threshold = 0;  ///< by how much the metric must be better to count
  std::string metric{};  ///< with or without "eval_"; default: metric_for_best_model, else the loss
  std::optional<bool>
      greater_is_better{};  ///< default: greater_is_better, else whether the metric is no loss
};
/// transformers' EarlyStoppingCallback. Needs an eval_strategy; an evaluation without the metric is a ValueError.
std::shared_ptr<TrainerCallback> early_stopping(EarlyStoppingOptions options = {});

/// Adds samples_per_second and steps_per_second, since the entry before, to every entry of the log.
std::shared_ptr<TrainerCallback> throughput();

namespace detail {

/// An event, and its name for errors.
struct CallbackEvent {
  void (TrainerCallback::*call)(CallbackContext&);
  const char* name;
};
/// Calls it on each. Throws Error "the callback NAME failed in EVENT: ...".
void call_callbacks(const std::vector<std::shared_ptr<TrainerCallback>>& callbacks, CallbackEvent event,
                    CallbackContext& context);

/// Sets on all ranks the flags that one has set. Called by all; blocks.
void agree_on(TrainerControl& control, const ProcessGroup& group);

}  // namespace detail
}  // namespace lockstep
