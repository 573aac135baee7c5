// When a training saves checkpoints, and which model it keeps in the end.
#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <utility>

#include "lockstep/checkpoint/folder.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/trainer/run/trainer_impl.h"

namespace lockstep {
using namespace detail;

CheckpointedTraining Trainer::Impl::checkpointed(Run& run) {
  return {.module = module,
          .optimizer = *parts.optimizer,
          .scheduler = run.scheduler ? &*run.scheduler : nullptr,
          .plateau = run.plateau ? &*run.plateau : nullptr,
          .ema = ema ? &*ema : nullptr,
          .callbacks = callbacks,
          .arguments = arguments,
          .group = group,
          .model_files = parts.model_files};
}

// The best model is again the one whose checkpoint is complete. Called by all ranks.
void Trainer::Impl::forget_unsaved_best() {
  if (unsaved_best && state.best_global_step == unsaved_best->step) {
    state.best_metric = saved_best.metric;
    state.best_global_step = saved_best.step;
    state.best_model_checkpoint = saved_best.checkpoint;
  }
  unsaved_best.reset();
}

void Trainer::Impl::save_checkpoint(Run& run) {
  if (!checkpoints) return;
  auto snapshot = checkpoints->snapshot();  // the one before is complete now, or has failed
  if (unsaved_best) saved_best = *std::exchange(unsaved_best, std::nullopt);
  const std::string name = checkpoint::checkpoint_name(state.global_step);
  if (state.best_global_step == state.global_step) {
    state.best_model_checkpoint = (arguments.output_dir / name).string();
    if (arguments.load_best_model_at_end || arguments.save_strategy == SaveStrategy::BEST)
      unsaved_best = Best{state.best_metric, state.best_global_step, state.best_model_checkpoint};
  }
  on_all_ranks(group, [&] { add_files(checkpointed(run), state, run.position, snapshot); });
  std::set<std::string> kept;
  if (arguments.load_best_model_at_end && !state.best_model_checkpoint.empty()) {
    kept.insert(std::filesystem::path(state.best_model_checkpoint).filename().string());
  }
  checkpoints->begin(state.global_step, std::move(snapshot), std::move(kept));
  last_saved_step = state.global_step;
  call(LOCKSTEP_EVENT(on_save));
}

void Trainer::Impl::end_checkpoints() {
  if (!checkpoints) return;
  checkpoints->finish();
  checkpoints.reset();
  if (!arguments.load_best_model_at_end || state.best_model_checkpoint.empty()) return;
  on_all_ranks(group,
               [&] { load_model(module, checkpoint::open(state.best_model_checkpoint, {.verify = false})); });
  // With an average of the weights the checkpoint's model is the average of its step.
  ema.reset();
  if (state.best_global_step != state.global_step) last_evaluation_step = -1;  // of another model
  bar.message(fmt::format("loaded the best model, {}: {} {:.6g}", state.best_model_checkpoint,
                          arguments.best_metric(), *state.best_metric));
}

}  // namespace lockstep
