#include "lockstep/trainer/checkpoints/changed_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/trainer/arguments/training_arguments_table.h"

namespace lockstep {
namespace {

using checkpoint::RecordDifference;
using checkpoint::RecordKind;
using checkpoint::RunRecord;
using nlohmann::json;

/// The kind of a field that a resume refuses to change.
std::optional<RecordKind> refused_kind(ResumeEffect effect) {
  switch (effect) {
    case ResumeEffect::REFUSED_SEED:
      return RecordKind::seed;
    case ResumeEffect::REFUSED_SAMPLING:
    case ResumeEffect::REFUSED_WITHIN_EPOCH:
      return RecordKind::sampling;
    default:
      return std::nullopt;
  }
}

/// Fields whose new value takes effect between two epochs are neither refused nor need resume_anyway there.
void allow_between_epochs(std::vector<RecordDifference>& differences, ChangedRun& changed) {
  for (const auto& row : training_resume_rows()) {
    if (row.effect != ResumeEffect::REFUSED_WITHIN_EPOCH) continue;
    const auto found = std::find_if(differences.begin(), differences.end(),
                                    [&](const RecordDifference& each) { return each.name == row.name; });
    if (found == differences.end()) continue;
    changed.changed.push_back(fmt::format("{} {} (was {})", found->name, found->now, found->saved));
    differences.erase(found);
  }
}

void compare_arguments(const json& before, const json& now, ChangedRun& changed) {
  for (const auto& row : training_resume_rows()) {
    const auto old = before.find(row.name), current = now.find(row.name);
    if (old == before.end() || current == now.end() || *old == *current) continue;
    if (row.effect == ResumeEffect::KEPT) {
      changed.kept.push_back(fmt::format("{} {} (not {})", row.name, dump_json(*old), dump_json(*current)));
    } else if (row.effect == ResumeEffect::NEW) {
      changed.changed.push_back(
          fmt::format("{} {} (was {})", row.name, dump_json(*current), dump_json(*old)));
    }
  }
}

std::string text_in(const json& arguments, const char* name) {
  const auto found = arguments.find(name);
  return found != arguments.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// The arguments as they choose the best model.
TrainingArguments read_best_choice(const json& arguments) {
  TrainingArguments choice;
  choice.metric_for_best_model = text_in(arguments, "metric_for_best_model");
  const auto greater = arguments.find("greater_is_better");
  if (greater != arguments.end() && greater->is_boolean()) choice.greater_is_better = greater->get<bool>();
  return choice;
}

bool is_plateau(const std::string& scheduler) { return scheduler == "reduce_lr_on_plateau"; }

}  // namespace

RunRecord read_argument_record(const std::string& training_args) {
  const json arguments = parse_json(training_args);
  RunRecord record;
  if (!arguments.is_object()) return record;
  for (const auto& row : training_resume_rows()) {
    const auto kind = refused_kind(row.effect);
    auto found = arguments.find(row.name);
    if (!kind || found == arguments.end()) continue;
    if (found->is_null() && std::string_view(row.name) == "data_seed") found = arguments.find("seed");
    if (found != arguments.end()) record.set_json(row.name, *kind, dump_json(*found));
  }
  return record;
}

RunRecord make_trainer_record(const TrainingArguments& arguments, int64_t train_samples, int64_t ranks,
                              int64_t threads) {
  RunRecord record = read_argument_record(to_json(arguments));
  record.set("train_samples", RecordKind::data, train_samples);
  record.set("world_size", RecordKind::world, ranks);
  record.set("threads", RecordKind::world, threads);
  return record;
}

ChangedRun compare_runs(const RunRecord& saved, RunRecord now, const std::string& saved_arguments,
                        const TrainingArguments& arguments, bool within_epoch) {
  ChangedRun changed;
  // An earlier version has not recorded them.
  if (!saved.has("threads")) now.remove("threads");
  for (const auto& row : training_resume_rows()) {
    if (refused_kind(row.effect) && !saved.has(row.name)) now.remove(row.name);
  }
  auto differences = compare(saved, now);
  if (!within_epoch) allow_between_epochs(differences, changed);
  changed.record = check(std::move(differences), checkpoint::parse_record_kinds(arguments.resume_anyway));
  const json before = parse_json(saved_arguments);
  if (!before.is_object()) return changed;
  compare_arguments(before, parse_json(to_json(arguments)), changed);
  const TrainingArguments old_choice = read_best_choice(before);
  changed.forgets_best = old_choice.best_metric() != arguments.best_metric() ||
                         old_choice.best_metric_is_greatest() != arguments.best_metric_is_greatest();
  const std::string scheduler = text_in(before, "lr_scheduler_type");
  if (!scheduler.empty() && is_plateau(scheduler) != arguments.reduces_lr_on_plateau()) {
    throw ValueError(
        fmt::format("lr_scheduler_type is {}, the checkpoint's run had {}; a resume cannot change to or from "
                    "reduce_lr_on_plateau: give --lr-scheduler-type {}",
                    arguments.lr_scheduler_type, scheduler, scheduler));
  }
  return changed;
}

ChangedRun find_changes(const ResumePoint& point, const RunRecord& known,
                        const TrainingArguments& arguments) {
  RunRecord now;
  if (point.has_record) now = known;
  now.add(read_argument_record(to_json(arguments)));
  RunRecord saved = point.record;
  for (const auto& [name, entry] : point.record.entries()) {
    if (!now.has(name)) saved.remove(name);
  }
  return compare_runs(saved, now, point.arguments, arguments, point.position.is_within_epoch());
}

void keep_arguments(const std::string& saved_arguments, TrainingArguments& arguments) {
  const json before = parse_json(saved_arguments);
  if (!before.is_object()) return;
  json kept = json::object();
  for (const auto& row : training_resume_rows()) {
    if (row.effect == ResumeEffect::KEPT && before.contains(row.name)) kept[row.name] = before[row.name];
  }
  const TrainingArguments old =
      training_arguments_from_json(dump_json(kept), "the checkpoint's training_args.json");
#define LOCKSTEP_ARGUMENT(type, name, preset, preset_text, ok, expected, word, help) \
  if (kept.contains(#name)) arguments.name = old.name;
#include "lockstep/trainer/training_arguments.inc"
}

std::string take_seeds(const std::string& saved_arguments, TrainingArguments& arguments) {
  const json before = parse_json(saved_arguments);
  if (!before.is_object()) return {};
  const auto seed = before.find("seed"), data_seed = before.find("data_seed");
  if (seed == before.end() || !seed->is_number_unsigned()) return {};
  std::vector<std::string> taken;
  if (arguments.not_given.contains("seed") && arguments.seed != seed->get<uint64_t>()) {
    arguments.seed = seed->get<uint64_t>();
    taken.push_back(fmt::format("seed {}", arguments.seed));
  }
  if (arguments.not_given.contains("data_seed") && arguments.seed == seed->get<uint64_t>() &&
      data_seed != before.end()) {
    const auto old =
        data_seed->is_number_unsigned() ? std::optional(data_seed->get<uint64_t>()) : std::nullopt;
    if (std::exchange(arguments.data_seed, old) != old) {
      taken.push_back(old ? fmt::format("data_seed {}", *old) : "no data_seed");
    }
  }
  if (taken.empty()) return {};
  return fmt::format("{} as the checkpoint's run, since the flag is not given", fmt::join(taken, " and "));
}

std::string describe_changed_arguments(const ChangedRun& changed) {
  std::string text;
  if (!changed.kept.empty()) {
    text += fmt::format("; the old value takes effect: {}", fmt::join(changed.kept, ", "));
  }
  if (!changed.changed.empty()) {
    text += fmt::format("; the new value takes effect: {}", fmt::join(changed.changed, ", "));
  }
  if (text.empty()) return text;
  return "warning: other arguments than the checkpoint's run had" + text;
}

}  // namespace lockstep
