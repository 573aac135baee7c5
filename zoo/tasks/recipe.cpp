#include "lockstep/zoo/tasks/recipe.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>

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
int data_ranks(const Recipe& recipe, const World& world) {
  return recipe.args.deterministic_world > 0 ? recipe.args.deterministic_world : world.size();
}

void print_start(const Recipe& recipe, const World& world) {
  fmt::print("{} rank{} (backend {}, {} thread{} each), {}\n", world.size(), world.size() == 1 ? "" : "s",
             world.backend_name(), at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s",
             recipe.about());
  if (recipe.train_size > 0) {
    const auto plan = plan_training(recipe.train_size, data_ranks(recipe, world), recipe.args);
    fmt::print("training: {} samples, {} steps of {} samples\n", recipe.train_size, plan.max_steps,
               plan.total_train_batch_size);
  }
  std::fflush(stdout);
}

Recipe::OnSamples sample_log(const std::filesystem::path& path, int rank) {
  if (path.empty()) return {};
  return [rank, file = std::make_shared<LineFile>(path, false)](int64_t step,
                                                                const std::vector<int64_t>& ids) {
    file->append(fmt::format(R"({{"step": {}, "rank": {}, "ids": [{}]}})", step, rank, fmt::join(ids, ", ")));
  };
}

/// The signal by which any rank has been asked to stop; all ranks call it.
int agreed_stop_signal(const World& world) {
  const auto signal = at::scalar_tensor(stop_signal(), at::kLong);
  world.all_reduce(signal, {.op = ReduceOp::MAX});
  return signal.item<int>();
}

void train_and_test(Recipe& recipe, const World& world, Trainer& trainer) {
  const auto& args = recipe.args;
  const bool main_rank = world.rank() == 0;
  const auto started = std::chrono::steady_clock::now();
  std::vector<std::pair<std::string, Metrics>> summary;
  const bool writes = main_rank && args.fast_dev_run == 0;
  const auto save = [&](const std::string& split, const Metrics& metrics) {
    if (!main_rank || metrics.empty()) return;
    if (writes) save_metrics(args.output_dir, split, metrics);
    summary.emplace_back(split, metrics);
  };
  const bool trains = recipe.train.size > 0;
  // A signal that comes after the last step waits until everything is saved. It is never deleted where nothing
  // but the process's end follows, in which a signal would look like a failure.
  const StopSignals* const signals = trains && args.saves() ? new StopSignals : nullptr;
  if (trains) {
    save("train", trainer.train());
    if (args.fast_dev_run == 0) trainer.save_model(args.output_dir);
    if (writes) save_trainer_state(trainer.state(), args.output_dir);
  }
  if (recipe.validation.size > 0) {
    // The last step's evaluation is of the same model.
    const auto last = trainer.last_evaluation();
    save("eval", last.empty() ? trainer.evaluate(recipe.validation) : last);
  }
  if (recipe.test.size > 0) {
    if (const int signal = signals == nullptr ? 0 : agreed_stop_signal(world)) {
      const std::string text = fmt::format("stopped by {} before the predictions; the model is saved in {}",
                                           signal == SIGINT    ? "SIGINT"
                                           : signal == SIGUSR1 ? "SIGUSR1"
                                                               : "SIGTERM",
                                           args.output_dir.string());
      if (main_rank) std::fputs((text + "\n").c_str(), stderr);
      throw ReportedError(text, stop_exit_code(signal));
    }
    delete signals;
    const auto prediction = trainer.predict(recipe.test);
    save("test", prediction.metrics);
    if (main_rank) recipe.write_predictions(prediction);
  }
  if (!main_rank) return;
  if (trains) {
    if (writes) save_trainer_state(trainer.state(), args.output_dir);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
    fmt::print("{}\n", length_of_run(trainer.state(), trainer.first_step(), seconds.count()));
  }
  if (!summary.empty()) fmt::print("{}\n", summary_table(summary));
  if (trains && writes) fmt::print("model saved in {}\n", args.output_dir.string());
}

void work(Recipe& recipe, const World& world, const std::filesystem::path& log_sample_ids) {
  const auto trainer = recipe.make_trainer(world, sample_log(log_sample_ids, world.rank()));
  try {
    train_and_test(recipe, world, *trainer);
  } catch (const std::exception& error) {
    detail::note_failure(*trainer, error);
    throw;
  }
}

int run(const char* name, const char* description, Recipe& recipe, int argc, char** argv) {
  // Every rank finds the same mistake in the flags; it is reported once the ranks can agree who speaks.
  std::filesystem::path log_sample_ids;
  std::optional<ValueError> mistake;
  try {
    const auto add_flags = [&](CommandLine program) {
      recipe.add_flags(program);
      program
          .add_option("--log-sample-ids", log_sample_ids,
                      "Write the samples of every step and rank to this file")
          .type_name("FILE");
      add_training_flags(program, recipe.args);
    };
    if (!parse_command_line(name, description, add_flags, argc, argv)) return 0;
    recipe.args.validate();
    recipe.check_flags();
  } catch (const ValueError& error) {
    mistake = error;
  }
  auto world = init({.backend = mistake ? "" : recipe.args.ddp_backend, .timeout = recipe.args.ddp_timeout});
  if (world.rank() != 0) {
    log::set_level(log::Level::error);
    disable_progress_bars();
  }
  on_all_ranks(world, [&] {
    if (mistake) throw *mistake;
    recipe.read();
    if (recipe.train_size > 0) {
      if (world.rank() == 0) check_output_dir(recipe.args);
      plan_training(recipe.train_size, data_ranks(recipe, world), recipe.args);
    }
    if (world.rank() == 0) {
      make_directory(recipe.args.output_dir);
      if (!log_sample_ids.empty()) LineFile(log_sample_ids, true);
      recipe.prepare();
    }
  });
  on_all_ranks(world, [&] {
    at::manual_seed(recipe.args.seed);
    recipe.load();
  });
  if (world.rank() == 0) print_start(recipe, world);
  work(recipe, world, log_sample_ids);
  return 0;
}

}  // namespace

std::string parameters_in_words(const torch::nn::Module& module) {
  int64_t parameters = 0;
  for (const auto& parameter : lockstep::parameters(module)) parameters += parameter.numel();
  return fmt::format("{:.1f} M parameters", static_cast<double>(parameters) / 1e6);
}

int run_recipe(const char* name, const char* description, Recipe& recipe, int argc, char** argv) {
  skip_library_destructors();
  keep_freed_memory();  // a step's tensors return in the next
  return run_main(name, [&] { return run(name, description, recipe, argc, argv); });
}

}  // namespace lockstep::tasks
