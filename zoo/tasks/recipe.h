// What every program that trains with a Trainer does around its data and its model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/trainer/training_arguments.h"
#include "lockstep/zoo/tasks/datasets.h"
#include "lockstep/zoo/tasks/recipe_flags.h"

namespace lockstep::tasks {

/// A recipe's name and flags.
struct RecipeProgram {
  const char* name;         ///< stands before its errors, and in --help
  const char* description;  ///< one line for --help
  std::function<void(RecipeFlags&)>
      add_flags{};  ///< adds the recipe's own flags; those of its arguments follow
  std::function<void()>
      check_flags{};  ///< throws ValueError for flags that do not fit together; the arguments are valid
};

/// A process of a recipe among the others.
struct RecipeRun {
  World world;                             ///< all ranks of the job
  std::filesystem::path log_sample_ids{};  ///< of --log-sample-ids; empty: no file
  checkpoint::RunRecord flags{};           ///< RecipeFlags::record(), for TrainerOptions::record
};

/// main() of a recipe: run_main() around `body`, with the settings that make a training and its end quick. Returns the
/// exit code.
int run_recipe(const char* name, const std::function<int()>& body);

/// Reads the flags into `args` and what `program` names, and joins the other ranks; nothing if the flags ask for help
/// or --show-resume-effects only, which prints describe_resume(). Ranks other than 0 become silent but for errors. A mistake in the flags is told once, by one rank, and throws
/// on all. Blocks.
///
///     const auto run = tasks::start_recipe({.name = "name", .description = "Does this"}, args, argc, argv);
///     if (!run) return 0;
std::optional<RecipeRun> start_recipe(const RecipeProgram& program, TrainingArguments& args, int argc,
                                      char** argv);

/// Makes args.output_dir on rank 0, where `write` then may write what all ranks are to read; the others wait. Throws on all
/// ranks what check_output_dir(), plan_training() (unless train_size is 0, the number of samples) and `write` throw.
void make_output_dir(const RecipeRun& run, const TrainingArguments& args, int64_t train_size,
                     const std::function<void()>& write = {});

/// Prints what will happen, in two lines; for rank 0. `about`: model and data, "11.2 M parameters, labels negative, positive".
void print_start(const RecipeRun& run, const TrainingArguments& args, int64_t train_size,
                 const std::string& about);

/// For TrainerOptions::on_samples: writes which samples each rank used, with --log-sample-ids.
std::function<void(int64_t step, const std::vector<int64_t>& indices)> log_samples(const RecipeRun& run);

/// Called on rank 0 with what `trainer` predicts for the test set.
using WritePredictions = std::function<void(const Trainer::Prediction& prediction)>;

/// Trains on `data.train`, saves the model, evaluates `data.validation` and predicts `data.test`, whichever is not empty;
/// writes results and log into the output directory, and prints them. All ranks call it. Blocks.
void train_and_test(const RecipeRun& run, Trainer& trainer, const Datasets& data,
                    const WritePredictions& write_predictions = {});

/// "11.2 M parameters".
std::string parameters_in_words(const torch::nn::Module& module);

}  // namespace lockstep::tasks
