#include "lockstep/trainer/checkpoints/resume.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/module_file.h"
#include "lockstep/checkpoint/publish.h"
#include "lockstep/comm/all_ranks.h"

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

/// Arguments that say how a run is shown, saved and spread, not what it computes.
bool changes_nothing(const std::string& name) {
  static const std::set<std::string> names = {"output_dir",
                                              "overwrite_output_dir",
                                              "resume_from_checkpoint",
                                              "logging_strategy",
                                              "logging_steps",
                                              "logging_first_step",
                                              "disable_tqdm",
                                              "model_summary",
                                              "save_strategy",
                                              "save_steps",
                                              "save_total_limit",
                                              "save_only_model",
                                              "save_failure",
                                              "load_best_model_at_end",
                                              "per_device_eval_batch_size",
                                              "per_device_train_batch_size",
                                              "gradient_accumulation_steps",
                                              "dataloader_num_workers",
                                              "dataloader_prefetch_factor",
                                              "ddp_bucket_cap_mb",
                                              "ddp_backend",
                                              "ddp_timeout",
                                              "zero_redundancy_optimizer",
                                              "max_time",
                                              "project"};
  return names.contains(name) || name.starts_with("report_") || name.starts_with("run_");
}

checkpoint::Checkpoint choose(const TrainingArguments& arguments) {
  const std::string& wanted = arguments.resume_from_checkpoint;
  if (wanted != "latest" && wanted != "auto") return checkpoint::open(wanted);
  auto found = checkpoint::latest(arguments.output_dir);
  if (!found) {
    throw ValueError(
        fmt::format("--resume-from-checkpoint latest: {} has no complete checkpoint; give auto to begin "
                    "at the start where there is none",
                    arguments.output_dir.string()));
  }
  return std::move(*found);
}

/// The folder may have another name now, or be named from another working directory.
void find_best_again(TrainerState& state, std::filesystem::path from, const TrainingArguments& arguments,
                     bool speaks) {
  std::string& best = state.best_model_checkpoint;
  if (best.empty()) return;
  if (!from.has_filename()) from = from.parent_path();  // "out/checkpoint-5/"
  const auto beside = from.parent_path() / std::filesystem::path(best).filename();
  if (std::filesystem::exists(beside / checkpoint::kManifestName)) {
    best = beside.string();
  } else if (arguments.load_best_model_at_end &&
             !std::filesystem::exists(std::filesystem::path(best) / checkpoint::kManifestName)) {
    if (speaks)
      log::warning(best + ", the best model so far, is no longer there; another one will be the best");
    state.best_metric.reset();
    state.best_global_step.reset();
    best.clear();
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

std::optional<ResumePoint> find_resume_point(const TrainingArguments& arguments, const ProcessGroup& group) {
  if (arguments.resume_from_checkpoint.empty()) return std::nullopt;
  std::string path;  // empty: there is none
  on_all_ranks(group, [&] {
    if (group.rank() != 0) return;
    const std::string& wanted = arguments.resume_from_checkpoint;
    if (arguments.saves() && (wanted == "auto" || wanted == "latest") &&
        std::filesystem::is_directory(arguments.output_dir)) {
      // Checkpointing does so too, but then a replaced one would get its name back between being found and being read.
      checkpoint::clean(*checkpoint::posix_files(), arguments.output_dir);
    }
    if (wanted == "auto") {
      const auto found = checkpoint::latest(arguments.output_dir);
      if (found) path = found->path().string();
      if (!found && !checkpoint::candidates(arguments.output_dir).empty()) {
        throw FileError(fmt::format(
            "--resume-from-checkpoint auto: {} has checkpoints, but none can be used (see the warnings); repair or "
            "remove them to begin at the start",
            arguments.output_dir.string()));
      }
    } else {
      path = choose(arguments).path().string();
    }
  });
  path = group.broadcast_bytes(path);
  if (path.empty()) return std::nullopt;
  std::optional<ResumePoint> point;
  on_all_ranks(group, [&] {
    auto checkpoint = checkpoint::open(path, {.verify = false});  // rank 0 has done so
    if (!checkpoint.has_tensors("training_state")) {
      throw ValueError(
          fmt::format("{} cannot be resumed from: it holds the model alone (save_only_model)", path));
    }
    auto state =
        trainer_state_from_json(checkpoint.read_text("trainer_state.json"), path + "/trainer_state.json");
    find_best_again(state, checkpoint.path(), arguments, group.rank() == 0);
    StateDict training = checkpoint.read_state("training_state");
    const auto position = TrainingPosition::from(training.part("position"));
    point.emplace(ResumePoint{std::move(checkpoint), std::move(state), std::move(training), position});
  });
  return point;
}

std::string adapt_to(const TrainingPosition& position, int world_size, int64_t dataset_size,
                     TrainingArguments& arguments) {
  if (dataset_size != position.dataset_size) {
    throw ValueError(fmt::format(
        "the checkpoint's run trained on {} samples, but the training set has {}; resume with the same one",
        position.dataset_size, dataset_size));
  }
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

std::string changed_arguments(const std::string& saved, const TrainingArguments& arguments) {
  const auto before = parse_json(saved), now = parse_json(to_json(arguments));
  std::vector<std::string> changes;
  if (!before.is_object()) return {};
  for (const auto& [name, value] : now.items()) {
    const auto found = before.find(name);
    if (found == before.end() || *found == value || changes_nothing(name)) continue;
    changes.push_back(fmt::format("{} {} -> {}", name, dump_json(*found), dump_json(value)));
  }
  return fmt::format("{}", fmt::join(changes, ", "));
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
