#include "lockstep/trainer/checkpoints/training_files.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/trainer/ema_scope.h"

namespace lockstep {
namespace {

std::string of_rank(const char* stem, int rank) { return fmt::format("{}-rank-{:05}", stem, rank); }

std::string prefix_of(size_t callback, const std::vector<std::shared_ptr<TrainerCallback>>& callbacks) {
  return fmt::format("callbacks.{}.{}", callback, callbacks[callback]->name());
}

/// What an average is of: the parameters, and the buffers of floating point.
StateDict collect_weights(const torch::nn::Module& module) {
  StateDict weights;
  for (const auto& item : module.named_parameters()) weights.tensors[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers())
    if (item.value().defined() && item.value().is_floating_point())
      weights.tensors[item.key()] = item.value();
  return weights;
}

StateDict collect_buffers(const torch::nn::Module& module) {
  StateDict buffers;
  for (const auto& item : module.named_buffers()) buffers.tensors[item.key()] = item.value();
  return buffers;
}

/// Before the names of buffers' averages, which are each rank's own as the buffers are.
constexpr const char* kAverage = "@average";

void add_averages_of_buffers(const CheckpointedTraining& training, StateDict& buffers) {
  if (training.ema == nullptr) return;
  const StateDict average = training.ema->state_dict();
  StateDict own;
  for (const auto& [name, tensor] : buffers.tensors) {
    const auto found = average.tensors.find(name);
    if (found != average.tensors.end()) own.tensors[name] = found->second;
  }
  buffers.add(kAverage, own);
}

void load_averages_of_buffers(const CheckpointedTraining& training, const StateDict& buffers) {
  if (training.ema == nullptr) return;
  StateDict average = training.ema->state_dict();
  for (const auto& [name, tensor] : buffers.part(kAverage).tensors) average.tensors[name] = tensor;
  training.ema->load_state_dict(average);
}

/// Those of `to` that `from` has.
void copy_tensors(const StateDict& from, const StateDict& to) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : to.tensors) {
    const auto found = from.tensors.find(name);
    if (found != from.tensors.end()) at::Tensor(tensor).copy_(found->second);
  }
}

bool is_divided(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const ShardedOptimizer*>(&optimizer) != nullptr;
}

void add_model(const CheckpointedTraining& training, checkpoint::Snapshot& snapshot) {
  const auto averaged = ema_scope(training.ema);
  snapshot.add_module("model", training.module);
  if (!training.model_files) return;
  for (auto& [name, text] : training.model_files()) snapshot.add_text(name, text);
}

StateDict training_state(const CheckpointedTraining& training, const TrainingPosition& position) {
  StateDict state;
  state.add("position", position.state_dict());
  for (size_t c = 0; c < training.callbacks.size(); ++c) {
    state.add(prefix_of(c, training.callbacks), training.callbacks[c]->state_dict());
  }
  if (training.ema != nullptr) {
    state.scalars["ema.num_updates"] = training.ema->num_updates();
    state.add("weights", collect_weights(training.module));
  }
  return state;
}

void load_average(const CheckpointedTraining& training, const ResumePoint& from) {
  const StateDict weights = from.training.part("weights");
  if (weights.tensors.empty()) {
    if (training.ema == nullptr) return;
    // The checkpoint's run had no average: this one begins with its weights, not with those of before load_model().
    StateDict average = collect_weights(training.module);
    average.scalars["num_updates"] = int64_t{0};
    training.ema->load_state_dict(average);
    return;
  }
  if (training.ema != nullptr) {
    StateDict average = collect_weights(training.module);  // as load_model() has left it
    average.scalars["num_updates"] = from.training.get<int64_t>("the checkpoint", "ema.num_updates");
    training.ema->load_state_dict(average);
  }
  copy_tensors(weights, collect_weights(training.module));
}

}  // namespace

void add_files(const CheckpointedTraining& training, const TrainerState& state,
               const TrainingPosition& position, checkpoint::Snapshot& snapshot) {
  const int rank = training.group.rank();
  const bool is_first = rank == 0;
  if (is_first) {
    add_model(training, snapshot);
    snapshot.add_text("trainer_state.json", to_json(state));
    snapshot.add_text("training_args.json", to_json(training.arguments));
    snapshot.add_text(checkpoint::kRunRecordName, training.record.to_json());
  }
  if (training.arguments.save_only_model) return;
  if (is_first) {
    const StateDict schedule =
        training.scheduler != nullptr ? training.scheduler->state_dict() : training.plateau->state_dict();
    snapshot.add_text("scheduler.json", schedule.scalars_to_json() + "\n");
    snapshot.add_state("training_state", training_state(training, position));
  }
  if (is_divided(training.optimizer)) {
    snapshot.add_state(of_rank("optimizer", rank), optimizer_state_dict(training.optimizer));
  } else if (is_first) {
    snapshot.add_state("optimizer", optimizer_state_dict(training.optimizer));
  }
  // Each rank's own: without ddp_broadcast_buffers they stay so.
  if (auto buffers = collect_buffers(training.module);
      training.group.size() > 1 && !buffers.tensors.empty()) {
    add_averages_of_buffers(training, buffers);
    snapshot.add_state(of_rank("buffers", rank), buffers);
  }
}

void load_files(const CheckpointedTraining& training, const ResumePoint& from) {
  const auto& checkpoint = from.checkpoint;
  load_model(training.module, checkpoint);
  load_average(training, from);
  if (const auto own = of_rank("buffers", training.group.rank());
      checkpoint.world_size() == training.group.size() && checkpoint.has_tensors(own)) {
    const StateDict buffers = checkpoint.read_state(own);
    copy_tensors(buffers, collect_buffers(training.module));
    load_averages_of_buffers(training, buffers);
  }

  std::vector<StateDict> optimizer;
  if (checkpoint.has_tensors("optimizer")) {
    optimizer.push_back(checkpoint.read_state("optimizer"));
  } else {
    for (int r = 0; r < checkpoint.world_size(); ++r)
      optimizer.push_back(checkpoint.read_state(of_rank("optimizer", r)));
  }
  load_optimizer_state_dict(training.optimizer, optimizer);

  // After the optimizer, whose options have the learning rate of another moment.
  StateDict schedule;
  schedule.scalars = StateDict::scalars_from_json(checkpoint.read_text("scheduler.json"));
  if (training.scheduler != nullptr) {
    training.scheduler->load_state_dict(schedule);
  } else {
    if (from.forgets_best) schedule.scalars.erase("best");
    training.plateau->load_state_dict(schedule);
  }
}

void load_callbacks(const CheckpointedTraining& training, const ResumePoint& from) {
  for (size_t c = 0; c < training.callbacks.size(); ++c) {
    const StateDict state = from.training.part(prefix_of(c, training.callbacks));
    if (!state.scalars.empty() || !state.tensors.empty()) training.callbacks[c]->load_state_dict(state);
  }
}

}  // namespace lockstep
