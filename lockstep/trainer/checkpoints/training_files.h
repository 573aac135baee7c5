// What of a training stands in its checkpoints.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/snapshot.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/trainer/callback.h"
#include "lockstep/trainer/checkpoints/resume.h"

namespace lockstep {

/// What is saved of and loaded into. One of scheduler and plateau is null; so is ema, without one.
struct CheckpointedTraining {
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  LRScheduler* scheduler;
  ReduceLROnPlateau* plateau;
  ExponentialMovingAverage* ema;
  const std::vector<std::shared_ptr<TrainerCallback>>& callbacks;
  const TrainingArguments& arguments;
  const ProcessGroup& group;
  const std::function<std::map<std::string, std::string>()>& model_files;
  const checkpoint::RunRecord& record;
};

/// Copies this rank's files into `snapshot`. Rank 0's: model.safetensors (the averaged weights, with an EMA) and
/// model_files, trainer_state.json, training_args.json, run_record.json and, unless save_only_model, scheduler.json, training_state.safetensors and
/// optimizer.safetensors. Each rank's, where it has something of its own: its share of a divided optimizer's state,
/// its buffers.
void add_files(const CheckpointedTraining& training, const TrainerState& state,
               const TrainingPosition& position, checkpoint::Snapshot& snapshot);

/// The opposite, on every rank, but for the callbacks. Throws FileError and ValueError.
void load_files(const CheckpointedTraining& training, const ResumePoint& from);
/// What their state_dict() had returned.
void load_callbacks(const CheckpointedTraining& training, const ResumePoint& from);

}  // namespace lockstep
