// What every program that trains with a Trainer does around its data and its model.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/cli/command_line.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/dataset.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep::tasks {

/// A program's data and model. Derive from it, and give run_recipe() an object of your class: it calls the
/// functions in the order in which they stand here, on every rank.
class Recipe {
 public:
  virtual ~Recipe() = default;

  /// Adds the program's own flags; those of `args` follow.
  virtual void add_flags(CommandLine program) = 0;
  /// Throws ValueError for flags that do not fit together; args are valid.
  virtual void check_flags() {}
  /// Reads the files and sets train_size: whatever is wrong with them is said before anything is made. Writes
  /// nothing.
  virtual void read() = 0;
  /// On rank 0, before the others go on: writes into args.output_dir, which exists, what load() reads.
  virtual void prepare() {}
  /// Sets train, validation and test, and makes the model, alike on all ranks. torch's default generator has
  /// been seeded with args.seed.
  virtual void load() = 0;
  /// For the first line: "11.2 M parameters, labels negative, positive".
  virtual std::string about() const = 0;
  /// `on_samples` is for TrainerOptions.
  using OnSamples = std::function<void(int64_t step, const std::vector<int64_t>& indices)>;
  /// Makes the Trainer of the model and the datasets, with `args`; all ranks of `world` call it.
  virtual std::unique_ptr<Trainer> make_trainer(const ProcessGroup& world, OnSamples on_samples) = 0;
  /// On rank 0, into args.output_dir; called where `test` has samples.
  virtual void write_predictions(const Trainer::Prediction& /*prediction*/) {}

  TrainingArguments args{};  ///< set defaults in the constructor; flags change them before check_flags()
  int64_t train_size = 0;    ///< samples, set by read(); 0: nothing is trained
  Dataset train{};           ///< set by load(); empty: nothing is trained
  Dataset validation{};      ///< set by load(); empty: there is no evaluation
  Dataset test{};            ///< set by load(); empty: there is no prediction
};

/// "11.2 M parameters".
std::string parameters_in_words(const torch::nn::Module& module);

/// main() of a recipe: reads the flags, joins the other ranks, loads, prints what will happen, trains, saves the
/// model, evaluates on `validation`, predicts `test`, writes the results and the log into args.output_dir, and
/// prints them. A mistake is told once, by one rank. --log-sample-ids writes which samples each rank used. Returns
/// the exit code.
int run_recipe(const char* name, const char* description, Recipe& recipe, int argc, char** argv);

}  // namespace lockstep::tasks
