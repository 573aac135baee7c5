// Checkpoints of a user's own module: saved, stopped and resumed by the Trainer.
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/job/stop_signals.h"
#include "tests/trainer/trainer_cases.h"

namespace lockstep::testing {
namespace {

/// With buffers, and with dropout from LibTorch's own generator.
struct NormNetImpl : torch::nn::Module {
  NormNetImpl()
      : first(register_module("first", torch::nn::Linear(3, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        second(register_module("second", torch::nn::Linear(8, 4))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second(at::dropout(norm(first(x)).relu(), 0.3, is_training()));
  }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear second;
};
TORCH_MODULE(NormNet);

Loss loss_of(TrainedModel<NormNet>& net, const Batch& batch) {
  return cross_entropy_sum(net(batch["x"]), batch["label"]);
}

TrainingArguments arguments_for(const SharedFolder& folder, const std::string& name) {
  auto args = plain_arguments(folder);
  args.output_dir = folder.path / name;
  args.learning_rate = 0.1;
  args.optim_args = "momentum=0.9";
  args.lr_scheduler_type = "cosine";
  args.num_train_epochs = 3;
  args.per_device_train_batch_size = 2;
  args.gradient_accumulation_steps = 2;
  args.eval_strategy = IntervalStrategy::STEPS;
  args.eval_steps = 2;
  args.logging_steps = 1;
  args.save_steps = 4;
  args.ema_decay = 0.9;
  return args;
}

struct Outcome {
  std::vector<at::Tensor> tensors;
  std::vector<Metrics> log;
};

/// Trains to the end.
Outcome train(const TrainingArguments& args, uint64_t seed,
              std::vector<std::shared_ptr<TrainerCallback>> callbacks = {}) {
  at::manual_seed(seed);
  NormNet net;
  const Dataset data = points(22 * world().size());
  callbacks.push_back(early_stopping({.patience = 1000}));
  Trainer trainer(
      net, args, world(),
      {.train_dataset = data, .eval_dataset = data, .compute_loss = loss_of, .callbacks = callbacks});
  trainer.train();
  Outcome outcome;
  for (const auto& parameter : net->parameters()) outcome.tensors.push_back(parameter.detach());
  for (const auto& buffer : net->buffers()) outcome.tensors.push_back(buffer);
  for (auto entry : trainer.state().log_history) {
    std::erase_if(entry.values, [](const auto& value) {
      return value.first.find("runtime") != std::string::npos ||
             value.first.find("per_second") != std::string::npos;
    });
    outcome.log.push_back(entry.values);
  }
  return outcome;
}

/// Trains with evaluations that score `scores`, one after the other; the last again and again.
TrainerState train_scored(const TrainingArguments& args, std::vector<double> scores, NormNet net = NormNet(),
                          std::vector<std::shared_ptr<TrainerCallback>> callbacks = {}) {
  const Dataset data = points(22 * world().size());
  size_t next = 0;
  Trainer trainer(net, args, world(),
                  {.train_dataset = data,
                   .eval_dataset = data,
                   .compute_loss = loss_of,
                   .compute_metrics = [&](const at::Tensor&, const at::Tensor&) -> Metrics {
                     return {{"score", scores[std::min(next++, scores.size() - 1)]}};
                   },
                   .callbacks = std::move(callbacks)});
  trainer.train();
  return trainer.state();
}

TrainingArguments scored_arguments(const SharedFolder& folder, const std::string& name) {
  auto args = arguments_for(folder, name);
  args.ema_decay = 0;
  args.load_best_model_at_end = true;
  args.metric_for_best_model = "score";
  args.save_steps = 1000;
  return args;
}

/// A file where a checkpoint's files are to go.
struct InTheWay : TrainerCallback {
  explicit InTheWay(int64_t step) : step(step) {}
  std::string name() const override { return "in_the_way"; }
  void on_step_begin(CallbackContext& context) override {
    if (context.group.rank() != 0 || context.state.global_step + 1 != step) return;
    std::ofstream(context.args.output_dir / (".checkpoint-" + std::to_string(step) + ".tmp")) << "x";
  }
  int64_t step;
};

void expect_same(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) EXPECT_TRUE(at::equal(a.tensors[i], b.tensors[i])) << i;
  EXPECT_EQ(a.log, b.log);
}

TEST(Resume, FromAnyCheckpointGivesTheSameBits) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "whole");
  const Outcome whole = train(args, 1);
  for (const int step : {4, 8, 16}) {
    SCOPED_TRACE(step);
    args.output_dir = folder.path / ("from" + std::to_string(step));
    args.resume_from_checkpoint = (folder.path / "whole" / ("checkpoint-" + std::to_string(step))).string();
    expect_same(train(args, 100 + static_cast<uint64_t>(step)), whole);  // from other weights
  }
}

/// Signals one rank, in the middle of a step.
struct Signal : TrainerCallback {
  Signal(int64_t step, int signal) : step(step), signal(signal) {}
  std::string name() const override { return "signal"; }
  void on_substep_end(CallbackContext& context) override {
    const bool is_last = context.group.rank() == context.group.size() - 1;
    if (is_last && context.state.global_step + 1 == step) ::raise(signal);
  }
  int64_t step;
  int signal;
};

TEST(Resume, ASignalToOneRankStopsAllWithACheckpoint) {
  const SharedFolder folder;
  const Outcome whole = train(arguments_for(folder, "whole"), 1);
  auto args = arguments_for(folder, "stopped");
  args.save_steps = 1000;
  args.resume_from_checkpoint = "auto";
  for (const auto& [step, signal, code] :
       {std::tuple(3, SIGTERM, 75), std::tuple(7, SIGINT, 130), std::tuple(8, SIGUSR1, 75)}) {
    SCOPED_TRACE(step);
    try {
      // Only the first begins with its own weights.
      train(args, step == 3 ? 1 : static_cast<uint64_t>(step), {std::make_shared<Signal>(step, signal)});
      ADD_FAILURE() << "it did not stop";
    } catch (const ReportedError& error) {
      EXPECT_EQ(error.exit_code(), code);
      EXPECT_NE(std::string(error.what()).find("checkpoint-" + std::to_string(step) + " is saved"),
                std::string::npos)
          << error.what();
    }
    ::raise(signal == SIGINT ? SIGTERM : signal);  // late: others' have stopped this rank, or it comes twice
    world().barrier();
    EXPECT_TRUE(
        std::filesystem::exists(args.output_dir / ("checkpoint-" + std::to_string(step)) / "manifest.json"));
  }
  expect_same(train(args, 9), whole);
}

TEST(Resume, WithoutCheckpointsASignalIsLeftToWhoCaughtIt) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "whole");
  const Outcome whole = train(args, 1);
  const StopSignals caught;
  ::raise(SIGTERM);
  args.output_dir = folder.path / "unsaved";
  args.save_strategy = SaveStrategy::NO;
  expect_same(train(args, 1), whole);
  EXPECT_EQ(stop_signal(), SIGTERM);
}

TEST(Resume, BehindTheLastStepOfAnEpochTheLogIsTheSame) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "whole");
  args.logging_strategy = IntervalStrategy::EPOCH;
  args.save_steps = 6;  // an epoch's: saved before on_epoch_end logs
  const Outcome whole = train(args, 1);
  args.output_dir = folder.path / "resumed";
  args.resume_from_checkpoint = (folder.path / "whole/checkpoint-6").string();
  expect_same(train(args, 2), whole);
}

TEST(Resume, TheNameOfACheckpointMayEndInASlash) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "run");
  args.overwrite_output_dir = false;
  args.max_steps = 4;
  train(args, 1);
  args.max_steps = 5;
  args.resume_from_checkpoint = (folder.path / "run/checkpoint-4").string() + "/";
  train(args, 2);
}

TEST(Resume, ThroughputIsOfTheStepsThatThisRunMakes) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "run");
  args.max_steps = 4;
  train(args, 1);
  args.max_steps = 5;
  args.resume_from_checkpoint = "latest";
  NormNet net;
  const Dataset data = points(22 * world().size());
  Trainer trainer(
      net, args, world(),
      {.train_dataset = data, .eval_dataset = data, .compute_loss = loss_of, .callbacks = {throughput()}});
  trainer.train();
  bool found = false;
  for (const auto& entry : trainer.state().log_history) {
    if (entry.step != 5 || !entry.values.contains("steps_per_second")) continue;
    found = true;
    EXPECT_NEAR(entry.values.at("samples_per_second") / entry.values.at("steps_per_second"),
                4.0 * world().size(), 1e-6);
  }
  EXPECT_TRUE(found);
}

TEST(Resume, AnAverageThatTheCheckpointLacksBeginsWithItsWeights) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "plain");
  args.ema_decay = 0;
  args.max_steps = 4;
  train(args, 1);
  args.ema_decay = 0.9;
  args.output_dir = folder.path / "averaged";
  args.resume_from_checkpoint = (folder.path / "plain/checkpoint-4").string();
  at::manual_seed(2);
  NormNet net;
  const Dataset data = points(22 * world().size());
  Trainer trainer(net, args, world(), {.train_dataset = data, .eval_dataset = data, .compute_loss = loss_of});
  trainer.train();  // there is no step left
  trainer.save_model(folder.path / "saved");
  const auto saved = checkpoint::load_safetensors(folder.path / "saved/model.safetensors").tensors;
  for (const auto& parameter : net->named_parameters()) {
    EXPECT_TRUE(at::equal(saved.at(parameter.key()), parameter.value())) << parameter.key();
  }
}

TEST(Resume, AModelOfAnotherShapeIsRefusedAndLeftAlone) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "whole");
  args.max_steps = 4;
  train(args, 1);
  Net other(3, 5);
  args.output_dir = folder.path / "other";
  args.resume_from_checkpoint = (folder.path / "whole/checkpoint-4").string();
  const Dataset data = points(22 * world().size());
  Trainer trainer(other, args, world(),
                  {.train_dataset = data, .eval_dataset = data, .compute_loss = net_loss});
  const at::Tensor started = weights_of(*other).clone();
  EXPECT_THROW(trainer.train(), Error);
  EXPECT_TRUE(at::equal(weights_of(*other), started));
}

TEST(Resume, ABestModelThatCouldNotBeSavedIsNotTheBest) {
  const SharedFolder folder;
  auto args = scored_arguments(folder, "run");
  args.save_total_limit = 1;
  args.save_failure = "continue";
  args.max_steps = 6;
  NormNet net;
  const auto state = train_scored(args, {1, 2, 0}, net, {std::make_shared<InTheWay>(4)});
  EXPECT_EQ(state.best_global_step, 2);
  EXPECT_EQ(state.best_model_checkpoint, (args.output_dir / "checkpoint-2").string());
  EXPECT_TRUE(std::filesystem::exists(args.output_dir / "checkpoint-6"));
  EXPECT_FALSE(std::filesystem::exists(args.output_dir / "checkpoint-4"));
  const auto saved = checkpoint::load_safetensors(args.output_dir / "checkpoint-2/model.safetensors").tensors;
  for (const auto& item : net->named_parameters()) EXPECT_TRUE(at::equal(saved.at(item.key()), item.value()));
}

TEST(Resume, AutoGoesOnWithTheNewerContinuation) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "run");
  args.max_steps = 8;  // saves 4 and 8
  train(args, 1);
  world().barrier();
  args.resume_from_checkpoint = (args.output_dir / "checkpoint-4").string();
  args.max_steps = 6;
  train(args, 2);
  world().barrier();
  EXPECT_EQ(checkpoint::latest(args.output_dir)->step(), 6);
  EXPECT_TRUE(std::filesystem::exists(args.output_dir / "abandoned-checkpoint-8"));
  world().barrier();
  args.resume_from_checkpoint = (args.output_dir / "checkpoint-4").string();
  train(args, 3);  // a third continuation: what was set aside stays
  world().barrier();
  EXPECT_TRUE(std::filesystem::exists(args.output_dir / "abandoned-checkpoint-8"));
  EXPECT_TRUE(std::filesystem::exists(args.output_dir / "abandoned-checkpoint-6"));
  EXPECT_EQ(checkpoint::latest(args.output_dir)->step(), 6);
}

TEST(Resume, AutoDoesNotBeginAnewBesideACheckpointThatItCannotRead) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "run");
  args.overwrite_output_dir = false;
  args.max_steps = 4;
  train(args, 1);
  world().barrier();
  const auto log = read_file(args.output_dir / "log.jsonl");
  world().barrier();
  if (world().rank() == 0)
    std::filesystem::resize_file(args.output_dir / "checkpoint-4/model.safetensors", 100);
  world().barrier();
  args.resume_from_checkpoint = "auto";
  EXPECT_THROW(train(args, 2), Error);
  world().barrier();
  EXPECT_EQ(read_file(args.output_dir / "log.jsonl"), log);
  EXPECT_TRUE(std::filesystem::exists(args.output_dir / "checkpoint-4"));
}

/// Saves after this step, too, as a signal that ends the training does.
struct SaveAfter : TrainerCallback {
  explicit SaveAfter(int64_t step) : step(step) {}
  std::string name() const override { return "save_after"; }
  void on_step_end(CallbackContext& context) override {
    if (context.state.global_step == step) context.control.should_save = true;
  }
  int64_t step;
};

TEST(Resume, SaveStrategyBestKeepsTheBest) {
  const SharedFolder folder;
  auto args = scored_arguments(folder, "run");
  args.load_best_model_at_end = false;
  args.save_strategy = SaveStrategy::BEST;
  args.save_total_limit = 1;
  args.max_steps = 6;
  const auto state = train_scored(args, {1, 0}, NormNet(), {std::make_shared<SaveAfter>(5)});
  EXPECT_EQ(state.best_model_checkpoint, (args.output_dir / "checkpoint-2").string());
  EXPECT_TRUE(std::filesystem::exists(args.output_dir / "checkpoint-2"));
  EXPECT_TRUE(std::filesystem::exists(args.output_dir / "checkpoint-5"));
}

TEST(Resume, ABestModelOfARunThatSavedNoneIsNotTheBest) {
  const SharedFolder folder;
  auto args = scored_arguments(folder, "run");
  args.load_best_model_at_end = false;
  args.save_steps = 3;
  args.max_steps = 3;
  EXPECT_EQ(train_scored(args, {2}).best_global_step, 2);
  world().barrier();
  args.load_best_model_at_end = true;
  args.resume_from_checkpoint = "auto";
  args.save_steps = 1000;
  args.max_steps = 6;
  const auto state = train_scored(args, {1, 0});
  EXPECT_EQ(state.best_global_step, 4);
  EXPECT_EQ(state.best_model_checkpoint, (args.output_dir / "checkpoint-4").string());
}

TEST(Resume, TheBestModelIsFoundWhereTheFolderIsNow) {
  const SharedFolder folder;
  auto args = scored_arguments(folder, "here");
  args.max_steps = 4;
  train_scored(args, {1, 0});
  world().barrier();
  args.output_dir = folder.path / "there";
  if (world().rank() == 0) std::filesystem::rename(folder.path / "here", args.output_dir);
  world().barrier();
  args.resume_from_checkpoint = "auto";
  args.max_steps = 6;
  EXPECT_EQ(train_scored(args, {0}).best_model_checkpoint, (args.output_dir / "checkpoint-2").string());
}

TEST(Resume, FromACheckpointThatWasBeingReplaced) {
  const SharedFolder folder;
  auto args = arguments_for(folder, "run");
  args.max_steps = 4;
  train(args, 1);
  world().barrier();
  if (world().rank() == 0)
    std::filesystem::rename(args.output_dir / "checkpoint-4", args.output_dir / ".checkpoint-4.old");
  world().barrier();
  args.max_steps = 5;
  args.resume_from_checkpoint = "latest";
  train(args, 2);
  EXPECT_TRUE(std::filesystem::exists(args.output_dir / "checkpoint-4"));
}

}  // namespace
}  // namespace lockstep::testing
