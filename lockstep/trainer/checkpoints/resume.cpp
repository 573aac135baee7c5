#include "lockstep/trainer/checkpoints/resume.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/module_file.h"
#include "lockstep/checkpoint/parts.h"
#include "lockstep/trainer/best_metric.h"
#include "lockstep/trainer/checkpoints/changed_run.h"

namespace lockstep {
namespace {

constexpr const char* kThreads = "threads";
constexpr const char* kGradNorm = "grad_norm";
constexpr const char* kLearningRate = "learning_rate";
constexpr const char* kWho = "the checkpoint's training_state.safetensors";

/// f(name, field) for each field.
template <class Position, class F>
void visit(Position& position, F f) {
  f("epoch", position.epoch);
  f("update_steps_done", position.update_steps_done);
  f("loss_since_log", position.loss_since_log);
  f("total_loss", position.total_loss);
  f("last_logged_step", position.last_logged_step);
  f("world_size", position.world_size);
  f("total_train_batch_size", position.total_train_batch_size);
  f("update_steps_per_epoch", position.update_steps_per_epoch);
  f("samples_per_epoch", position.samples_per_epoch);
  f("dataset_size", position.dataset_size);
  f("sampler_batch_size", position.sampler_batch_size);
  f("sampler_accumulation_steps", position.sampler_accumulation_steps);
}

/// The folder may have another name now, or be named from another working directory.
void find_best_again(TrainerState& state, std::filesystem::path from, const TrainingArguments& arguments,
                     bool speaks) {
  std::string& best = state.best_model_checkpoint;
  const auto forget = [&](const std::string& why) {
    if (speaks) log::warning(why + "; another one will be the best");
    state.best_metric.reset();
    state.best_global_step.reset();
    best.clear();
  };
  if (best.empty()) {
    if (keeps_best_model(arguments) && state.best_metric)
      forget("the checkpoint's run has not saved its best model so far");
    return;
  }
  if (!from.has_filename()) from = from.parent_path();  // "out/checkpoint-5/"
  const auto beside = from.parent_path() / std::filesystem::path(best).filename();
  if (std::filesystem::exists(beside / checkpoint::kManifestName)) {
    best = beside.string();
  } else if (keeps_best_model(arguments) &&
             !std::filesystem::exists(std::filesystem::path(best) / checkpoint::kManifestName)) {
    forget(best + ", the best model so far, is no longer there");
  }
}

}  // namespace

StateDict TrainingPosition::state_dict() const {
  StateDict state;
  visit(*this, [&](const char* name, const auto& value) { state.scalars[name] = value; });
  state.scalars[kThreads] = threads;
  if (grad_norm) state.scalars[kGradNorm] = *grad_norm;
  if (learning_rate) state.scalars[kLearningRate] = *learning_rate;
  return state;
}

TrainingPosition TrainingPosition::from(const StateDict& state) {
  TrainingPosition position;
  visit(position, [&]<class T>(const char* name, T& value) { value = state.get<T>(kWho, name); });
  if (state.scalars.contains(kThreads)) position.threads = state.get<int64_t>(kWho, kThreads);
  if (state.scalars.contains(kGradNorm)) position.grad_norm = state.get<double>(kWho, kGradNorm);
  if (state.scalars.contains(kLearningRate)) position.learning_rate = state.get<double>(kWho, kLearningRate);
  return position;
}

ResumeSource resume_source(const TrainingArguments& arguments) {
  std::string wanted = arguments.resume_from_checkpoint;
  std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (wanted.empty() || wanted == "false") return ResumeSource::start;
  if (arguments.resume_from_checkpoint == "latest") return ResumeSource::newest;
  if (arguments.resume_from_checkpoint == "auto" || wanted == "true") return ResumeSource::newest_or_start;
  return ResumeSource::path;
}

ResumePoint read_resume_point(const checkpoint::Checkpoint& checkpoint, const TrainingArguments& arguments,
                              bool speaks) {
  const std::string path = checkpoint.path().string();
  if (!checkpoint.has_tensors("training_state")) {
    throw ValueError(
        fmt::format("{} cannot be resumed from: it holds the model alone (save_only_model)", path));
  }
  auto state =
      trainer_state_from_json(checkpoint.read_text("trainer_state.json"), path + "/trainer_state.json");
  find_best_again(state, checkpoint.path(), arguments, speaks);
  StateDict training = checkpoint.read_state("training_state");
  const auto position = TrainingPosition::from(training.part("position"));
  auto saved_arguments = checkpoint.read_text("training_args.json");
  checkpoint::RunRecord record = checkpoint::read_record(checkpoint);
  record.add(read_argument_record(saved_arguments));
  record.set("train_samples", checkpoint::RecordKind::data, position.dataset_size);
  record.set("world_size", checkpoint::RecordKind::world, position.world_size);
  if (position.threads > 0) record.set("threads", checkpoint::RecordKind::world, position.threads);
  return {.checkpoint = checkpoint,
          .state = std::move(state),
          .training = std::move(training),
          .position = position,
          .arguments = std::move(saved_arguments),
          .record = std::move(record),
          .has_record = checkpoint.has(checkpoint::kRunRecordName)};
}

std::string adapt_to(const TrainingPosition& position, int world_size, TrainingArguments& arguments) {
  const int64_t micro_batch = arguments.per_device_train_batch_size * world_size;
  if (micro_batch * arguments.gradient_accumulation_steps == position.total_train_batch_size) return {};
  const bool other_ranks = world_size != position.world_size;
  if (!other_ranks || position.total_train_batch_size % micro_batch != 0) {
    throw ValueError(fmt::format(
        "the checkpoint's steps have {} samples; {} rank{} with --per-device-train-batch-size {} and "
        "--gradient-accumulation-steps {} make {}{}",
        position.total_train_batch_size, world_size, world_size == 1 ? "" : "s",
        arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps,
        micro_batch * arguments.gradient_accumulation_steps,
        other_ranks ? "; choose a per-device batch size that divides them" : ""));
  }
  arguments.gradient_accumulation_steps = position.total_train_batch_size / micro_batch;
  return fmt::format(
      "{} rank{} instead of {}: gradient_accumulation_steps is {}, so that a step has {} samples as before",
      world_size, world_size == 1 ? "" : "s", position.world_size, arguments.gradient_accumulation_steps,
      position.total_train_batch_size);
}

void check_arithmetic(const TrainingPosition& position, const TrainingArguments& arguments, int threads) {
  if (arguments.deterministic_world == 0 || position.threads == 0 || position.threads == threads) return;
  throw ValueError(fmt::format(
      "the checkpoint's run had {} thread{} a process, this one has {}; with deterministic_world, whose sums depend on "
      "them, set OMP_NUM_THREADS={}",
      position.threads, position.threads == 1 ? "" : "s", threads, position.threads));
}

void check_plan(const TrainingPosition& position, const TrainingPlan& plan) {
  if (plan.update_steps_per_epoch == position.update_steps_per_epoch &&
      plan.samples_per_epoch == position.samples_per_epoch) {
    return;
  }
  throw ValueError(fmt::format(
      "an epoch of the checkpoint's run has {} steps and {} samples, with these arguments it has {} and {}; resume with "
      "its number of ranks, and its limit_train_batches, overfit_batches and dataloader_drop_last",
      position.update_steps_per_epoch, position.samples_per_epoch, plan.update_steps_per_epoch,
      plan.samples_per_epoch));
}

void move_to(TrainingPosition& position, const TrainingPlan& plan, int64_t steps_done, int64_t dataset_size) {
  if (plan.update_steps_per_epoch != position.update_steps_per_epoch) {
    position.epoch = steps_done / plan.update_steps_per_epoch;
    position.update_steps_done = steps_done % plan.update_steps_per_epoch;
  }
  position.update_steps_per_epoch = plan.update_steps_per_epoch;
  position.samples_per_epoch = plan.samples_per_epoch;
  position.dataset_size = dataset_size;
}

void load_model(torch::nn::Module& module, const checkpoint::Checkpoint& checkpoint) {
  auto given = checkpoint.read_tensors("model").tensors;
  std::vector<std::string> problems;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, tensor] : checkpoint::module_tensors(module).first) {
    const auto found = given.find(name);
    if (found == given.end()) {
      problems.push_back(name + " is missing");
    } else if (found->second.sizes() != tensor.sizes()) {
      problems.push_back(fmt::format("{} has shape [{}], the module's [{}]", name,
                                     fmt::join(found->second.sizes(), ", "),
                                     fmt::join(tensor.sizes(), ", ")));
    } else {
      copies.emplace_back(tensor, found->second);
    }
    if (found != given.end()) given.erase(found);
  }
  for (const auto& [name, tensor] : given) problems.push_back(name + " is unexpected");
  if (!problems.empty()) {
    constexpr size_t kMost = 8;
    const size_t more = problems.size() > kMost ? problems.size() - kMost : 0;
    if (more > 0) problems.resize(kMost);
    throw ValueError(fmt::format("{} does not fit the module: {}{}", checkpoint.path().string(),
                                 fmt::join(problems, "; "),
                                 more > 0 ? fmt::format("; and {} more", more) : std::string()));
  }
  const at::NoGradGuard no_grad;
  for (auto& [tensor, value] : copies) tensor.copy_(value);
}

}  // namespace lockstep
