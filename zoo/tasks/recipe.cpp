#include "lockstep/zoo/tasks/recipe.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <utility>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/main.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/job/stop_signals.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/tracking/progress/progress_bar.h"
#include "lockstep/trainer/flags.h"
#include "lockstep/trainer/output/output_dir.h"
#include "lockstep/trainer/output/summary.h"
#include "lockstep/trainer/output/training_log.h"
#include "lockstep/trainer/training_plan.h"

namespace lockstep::tasks {
namespace {

/// Among how many ranks samples are divided.
int data_ranks(const TrainingArguments& args, const World& world) {
  return args.deterministic_world > 0 ? args.deterministic_world : world.size();
}

/// The signal by which any rank has been asked to stop; all ranks call it.
int agreed_stop_signal(const World& world) {
  const auto signal = at::scalar_tensor(stop_signal(), at::kLong);
  world.all_reduce(signal, {.op = ReduceOp::MAX});
  return signal.item<int>();
}

/// Catches signals that come after the last step until everything is saved. Unless it is reset it lives as long as the
/// process, in whose end a signal would look like a failure.
std::optional<StopSignals>& caught_signals() {
  static auto* const signals = new std::optional<StopSignals>;  // never destroyed
  return *signals;
}

/// Ends all ranks if one of them has been asked to stop: the model is saved, and predictions may take long.
void end_if_stopped(const World& world, const std::filesystem::path& output_dir) {
  const int signal = agreed_stop_signal(world);
  if (signal == 0) return;
  const std::string text = fmt::format("stopped by {} before the predictions; the model is saved in {}",
                                       stop_signal_name(signal), output_dir.string());
  if (world.rank() == 0) std::fputs((text + "\n").c_str(), stderr);
  throw ReportedError(text, stop_exit_code(signal));
}

void train_evaluate_predict(const World& world, Trainer& trainer, const Datasets& data,
                            const WritePredictions& write_predictions) {
  const auto& args = trainer.args();
  const bool main_rank = world.rank() == 0;
  const auto started = std::chrono::steady_clock::now();
  std::vector<std::pair<std::string, Metrics>> summary;
  const bool writes = main_rank && args.fast_dev_run == 0;
  const auto save = [&](const std::string& split, const Metrics& metrics) {
    if (!main_rank || metrics.empty()) return;
    if (writes) save_metrics(args.output_dir, split, metrics);
    summary.emplace_back(split, metrics);
  };
  const bool trains = data.train.size > 0;
  auto& signals = caught_signals();
  if (trains && args.saves()) signals.emplace();
  if (trains) {
    save("train", trainer.train());
    if (args.fast_dev_run == 0) trainer.save_model(args.output_dir);
    if (writes) save_trainer_state(trainer.state(), args.output_dir);
  }
  if (data.validation.size > 0) {
    // The last step's evaluation is of the same model.
    const auto last = trainer.last_evaluation();
    save("eval", last.empty() ? trainer.evaluate(data.validation) : last);
  }
  if (data.test.size > 0) {
    if (signals) end_if_stopped(world, args.output_dir);
    const int late = stop_signal();  // it has come since the ranks agreed
    signals.reset();
    if (late != 0) std::raise(late);
    const auto prediction = trainer.predict(data.test);
    save("test", prediction.metrics);
    if (main_rank && write_predictions) write_predictions(prediction);
  }
  if (!main_rank) return;
  if (trains) {
    if (writes) save_trainer_state(trainer.state(), args.output_dir);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
    fmt::print("{}\n", length_of_run(trainer.state(), trainer.first_step(), seconds.count()));
  }
  if (!summary.empty()) fmt::print("{}\n", summary_table(summary));
  if (trains && writes) fmt::print("model saved in {}\n", args.output_dir.string());
  // A resume that has done nothing must not look like one that has trained.
  if (trains && trainer.first_step() > 0 && trainer.state().global_step == trainer.first_step()) {
    fmt::print("nothing was left to train: the checkpoint is after step {}, and the run has {}\n",
               trainer.first_step(), trainer.state().max_steps);
  }
}

/// Flags that all recipes have.
struct CommonFlags {
  std::filesystem::path log_sample_ids{};
  bool show_resume_effects = false;
};

constexpr auto kCommonFlags = std::to_array<RecipeFlag<CommonFlags>>({
    {{.name = "log-sample-ids",
      .member = &CommonFlags::log_sample_ids,
      .words = "Write the samples of every step and rank to this file"},
     OnResume::takes_new()},
});

constexpr auto kHelpFlags = std::to_array<Flag<CommonFlags>>({
    {.name = "show-resume-effects",
     .member = &CommonFlags::show_resume_effects,
     .words = "Print what a resume does if one of these flags changes, and end."},
});

}  // namespace

int run_recipe(const char* name, const std::function<int()>& body) {
  skip_library_destructors();
  keep_freed_memory();  // a step's tensors return in the next
  return run_main(name, body);
}

std::optional<RecipeRun> start_recipe(const RecipeProgram& program, TrainingArguments& args, int argc,
                                      char** argv) {
  CommonFlags common;
  checkpoint::RunRecord record;
  // Every rank finds the same mistake in the flags; it is reported once the ranks can agree who speaks.
  std::optional<ValueError> mistake;
  try {
    std::optional<RecipeFlags> flags;
    const auto add_flags = [&](CommandLine command_line) {
      flags.emplace(command_line);
      if (program.add_flags) program.add_flags(*flags);
      flags->add_table<CommonFlags>(kCommonFlags, common);
      command_line.add_table<CommonFlags>(kHelpFlags, common);
      add_training_flags(command_line, args);
      command_line.callback([&] {
        if (common.show_resume_effects) return;
        args.validate();
        if (program.check_flags) program.check_flags();
      });
    };
    if (!parse_command_line(program.name, program.description, add_flags, argc, argv)) return std::nullopt;
    if (common.show_resume_effects) {
      if (env::get_int(env::kRank).value_or(0) == 0) fmt::print("{}", describe_resume(flags->rows()));
      return std::nullopt;
    }
    record = flags->record();
  } catch (const ValueError& error) {
    mistake = error;
  }
  World world = init({.backend = mistake ? "" : args.ddp_backend, .timeout = args.ddp_timeout});
  if (world.rank() != 0) {
    log::set_level(log::Level::error);
    disable_progress_bars();
  }
  on_all_ranks(world, [&] {
    if (mistake) throw *mistake;
  });
  return RecipeRun{.world = std::move(world),
                   .log_sample_ids = std::move(common.log_sample_ids),
                   .flags = std::move(record)};
}

void make_output_dir(const RecipeRun& run, const TrainingArguments& args, int64_t train_size,
                     const std::function<void()>& write) {
  const World& world = run.world;
  on_all_ranks(world, [&] {
    if (train_size > 0) {
      if (world.rank() == 0) check_output_dir(args);
      plan_training(train_size, data_ranks(args, world), args);
    }
    if (world.rank() != 0) return;
    make_directory(args.output_dir);
    if (!run.log_sample_ids.empty()) LineFile(run.log_sample_ids, LineFile::Lines::remove);
    if (write) write();
  });
}

void print_start(const RecipeRun& run, const TrainingArguments& args, int64_t train_size,
                 const std::string& about) {
  const World& world = run.world;
  fmt::print("{} rank{} (backend {}, {} thread{} each), {}\n", world.size(), world.size() == 1 ? "" : "s",
             world.backend_name(), at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s", about);
  if (train_size > 0) {
    const auto plan = plan_training(train_size, data_ranks(args, world), args);
    fmt::print("training: {} samples, {} steps of {} samples\n", train_size, plan.max_steps,
               plan.total_train_batch_size);
  }
  std::fflush(stdout);
}

std::function<void(int64_t step, const std::vector<int64_t>& indices)> log_samples(const RecipeRun& run) {
  if (run.log_sample_ids.empty()) return {};
  return [rank = run.world.rank(), file = std::make_shared<LineFile>(run.log_sample_ids)](
             int64_t step, const std::vector<int64_t>& ids) {
    file->append(fmt::format(R"({{"step": {}, "rank": {}, "ids": [{}]}})", step, rank, fmt::join(ids, ", ")));
  };
}

void train_and_test(const RecipeRun& run, Trainer& trainer, const Datasets& data,
                    const WritePredictions& write_predictions) {
  try {
    train_evaluate_predict(run.world, trainer, data, write_predictions);
    trainer.check_saved();
  } catch (const std::exception& error) {
    detail::note_failure(trainer, error);
    throw;
  }
}

std::string parameters_in_words(const torch::nn::Module& module) {
  int64_t parameters = 0;
  for (const auto& parameter : lockstep::parameters(module)) parameters += parameter.numel();
  return fmt::format("{:.1f} M parameters", static_cast<double>(parameters) / 1e6);
}

}  // namespace lockstep::tasks
