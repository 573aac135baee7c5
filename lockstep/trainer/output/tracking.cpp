#include "lockstep/trainer/output/tracking.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/comm/objects.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/tracking/report_to.h"
#include "lockstep/tracking/trackers.h"
#include "lockstep/trainer/output/performance.h"
#include "lockstep/trainer/output/process_usage.h"

namespace lockstep {
namespace {

TrackedSettings collect_settings(const CallbackContext& context) {
  TrackedSettings settings;
  const nlohmann::json arguments = parse_json(to_json(context.args));
  for (const auto& [name, value] : arguments.items()) {
    if (value.is_boolean()) {
      settings[name] = value.get<bool>();
    } else if (value.is_number_integer()) {
      settings[name] = value.get<int64_t>();
    } else if (value.is_number()) {
      settings[name] = value.get<double>();
    } else if (value.is_string()) {
      settings[name] = value.get<std::string>();
    } else if (!value.is_null()) {
      settings[name] = dump_json(value);
    }
  }
  int64_t parameters = 0;
  for (const auto& parameter : lockstep::parameters(context.model)) parameters += parameter.numel();
  settings["parameters"] = parameters;
  settings["world_size"] = int64_t{context.group.size()};
  return settings;
}

/// The id of rank 0's run. A file that cannot be read or written costs the id at the next start, no more.
std::string choose_run_id(const TrainingArguments& arguments, bool is_resumed) {
  const auto file = arguments.output_dir / "run_id";
  std::string id = arguments.run_id;
  try {
    if (id.empty() && (is_resumed || env::get_int(env::kRestartCount).value_or(0) > 0))
      id = read_run_id(file);
    if (id.empty()) id = make_run_id();
    write_run_id(file, id);
  } catch (const std::exception& error) {
    log::warning(std::string("the run id is not kept for a restart: ") + error.what());
    if (id.empty()) id = make_run_id();
  }
  return id;
}

std::string default_name(const TrainingArguments& arguments) {
  if (!arguments.run_name.empty()) return arguments.run_name;
  const auto path = arguments.output_dir.lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

class Tracking : public TrainerCallback, public detail::KnowsTheEnd, public detail::KnowsTheLog {
 public:
  /// Without `trackers` those that report_to names.
  Tracking(std::optional<std::vector<std::shared_ptr<Tracker>>> trackers, TrackingOptions options)
      : given_(std::move(trackers)), options_(options) {}
  std::string name() const override { return "tracking"; }

  void on_train_begin(CallbackContext& context) override {
    trackers_.reset();
    if (context.args.fast_dev_run > 0) return;
    const bool all = options_.all_ranks && context.group.size() > 1;
    const bool tracks = all || context.group.rank() == 0;
    if (given_ && !tracks) return;
    const TrackedRun run = tracks ? describe_run(context, all) : TrackedRun{};
    const auto start = [&] {
      if (tracks) start_trackers(context, run);
    };
    // What report_to names is the same on all ranks, and so is the error if a tracker cannot start.
    if (given_) {
      start();
    } else {
      on_all_ranks(context.group, start);
    }
    if (all) usage_.emplace();
  }

  void go_on(CallbackContext& context) override {
    if (context.args.fast_dev_run > 0) return;
    const bool all = options_.all_ranks && context.group.size() > 1;
    if (!all && context.group.rank() != 0) return;
    // Those that are the user's take up their run again.
    if (trackers_) trackers_->finish(0);
    TrackedRun run = make_run(context, all, read_run_id(context.args.output_dir / "run_id"));
    resume_at(run, context.state);
    start_trackers(context, run);
    if (all) usage_.emplace();
  }

  void on_log(CallbackContext& context) override {
    if (!trackers_) return;
    TrackedValues values;
    for (const auto& [name, value] : *context.logs) values[tracked_name(name)] = value;
    values["train/epoch"] = context.state.epoch;
    if (usage_) {
      const auto used = usage_->since_last();
      values["rank/cpu_load"] = used.cpu_load;
      values["rank/peak_memory_mb"] = used.peak_memory_mb;
    }
    trackers_->log(context.state.global_step, values);
    if (context.logs->contains("train_runtime")) {
      trackers_->summary(TrackedSettings(context.logs->begin(), context.logs->end()));
    }
  }

  void end(int exit_code) override {
    if (trackers_) trackers_->finish(exit_code);
    trackers_.reset();
  }

 private:
  static TrackedRun describe_run(const CallbackContext& context, bool all) {
    std::string id;
    if (context.group.rank() == 0) id = choose_run_id(context.args, context.state.global_step > 0);
    if (all) id = broadcast_object(context.group, id).get<std::string>();
    TrackedRun run = make_run(context, all, std::move(id));
    if (context.state.global_step > 0) resume_at(run, context.state);
    return run;
  }

  /// `id`: empty on ranks that do not track.
  static TrackedRun make_run(const CallbackContext& context, bool all, std::string id) {
    TrackedRun run;
    if (!id.empty()) run.id = std::move(id);
    run.name = default_name(context.args);
    run.world_size = context.group.size();
    return all ? run_of_rank(run, context.group.rank(), context.group.size()) : run;
  }

  static void resume_at(TrackedRun& run, const TrainerState& state) {
    const int64_t step = state.global_step;
    run.resume_step = step;
    const auto& history = state.log_history;
    run.resume_step_records = std::count_if(history.begin(), history.end(),
                                            [&](const LogEntry& entry) { return entry.step == step; });
  }

  void start_trackers(const CallbackContext& context, const TrackedRun& run) {
    trackers_.emplace(given_ ? *given_ : make_trackers(context.args, run));
    try {
      trackers_->start(run);
    } catch (...) {
      trackers_.reset();  // those behind the one that failed have not begun
      throw;
    }
    trackers_->config(collect_settings(context));
  }

  static std::vector<std::shared_ptr<Tracker>> make_trackers(const TrainingArguments& arguments,
                                                             const TrackedRun& run) {
    std::vector<std::shared_ptr<Tracker>> made;
    const auto kinds = parse_report_to(arguments.report_to);
    const ReportOptions options{.directory = arguments.output_dir,
                                .project = arguments.project,
                                .skip_missing = arguments.report_to == "all"};
    for (const auto& kind : kinds.value()) made.push_back(make_tracker(kind, run, options));
    return made;
  }

  std::optional<std::vector<std::shared_ptr<Tracker>>> given_;
  TrackingOptions options_;
  std::optional<Trackers> trackers_{};
  std::optional<ProcessUsage> usage_{};
};

}  // namespace

std::shared_ptr<TrainerCallback> tracking(std::vector<std::shared_ptr<Tracker>> trackers,
                                          TrackingOptions options) {
  return std::make_shared<Tracking>(std::move(trackers), options);
}

std::vector<std::shared_ptr<TrainerCallback>> detail::with_tracking(
    std::vector<std::shared_ptr<TrainerCallback>> callbacks, const TrainingArguments& arguments) {
  if (arguments.report_performance) callbacks.push_back(performance());
  const auto kinds = parse_report_to(arguments.report_to);
  if (kinds && !kinds->empty()) {
    callbacks.push_back(std::make_shared<Tracking>(
        std::nullopt, TrackingOptions{.all_ranks = arguments.report_ranks == "all"}));
  }
  return callbacks;
}

}  // namespace lockstep
