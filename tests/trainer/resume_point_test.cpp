#include "lockstep/trainer/checkpoints/resume.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/trainer/arguments/training_arguments_table.h"
#include "lockstep/trainer/checkpoints/best_model.h"
#include "lockstep/trainer/checkpoints/changed_run.h"

namespace lockstep {
namespace {

std::string message(const std::function<void()>& body) {
  try {
    body();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TrainingPosition position() {
  TrainingPosition position;
  position.epoch = 1;
  position.update_steps_done = 5;
  position.loss_since_log = 0.1;
  position.total_loss = 1.0 / 3;
  position.world_size = 4;
  position.total_train_batch_size = 32;
  position.update_steps_per_epoch = 7;
  position.samples_per_epoch = 200;
  position.dataset_size = 200;
  position.sampler_batch_size = 8;
  position.sampler_accumulation_steps = 1;
  return position;
}

TEST(TrainingPosition, IsReadAsItWasWritten) {
  StateDict written = position().state_dict();
  StateDict read;
  read.scalars = StateDict::scalars_from_json(written.scalars_to_json());
  const auto now = TrainingPosition::from(read);
  EXPECT_EQ(now.state_dict().scalars, written.scalars);
  EXPECT_EQ(now.total_loss, 1.0 / 3);
  read.scalars.erase("dataset_size");
  EXPECT_THROW(TrainingPosition::from(read), ValueError);
}

TEST(AdaptTo, KeepsTheSamplesOfAStepWithAnotherNumberOfRanks) {
  TrainingArguments arguments;
  arguments.per_device_train_batch_size = 8;
  EXPECT_EQ(adapt_to(position(), 4, arguments), "");
  EXPECT_EQ(arguments.gradient_accumulation_steps, 1);
  EXPECT_EQ(
      adapt_to(position(), 2, arguments),
      "2 ranks instead of 4: gradient_accumulation_steps is 2, so that a step has 32 samples as before");
  EXPECT_EQ(arguments.gradient_accumulation_steps, 2);
  EXPECT_EQ(adapt_to(position(), 2, arguments), "");
  EXPECT_NE(message([&] {
              adapt_to(position(), 3, arguments);
            }).find("choose a per-device batch size that divides them"),
            std::string::npos);
  EXPECT_NE(message([&] { adapt_to(position(), 4, arguments); })
                .find("the checkpoint's steps have 32 samples; 4 ranks with "
                      "--per-device-train-batch-size 8 and "
                      "--gradient-accumulation-steps 2 make 64"),
            std::string::npos);
}

TEST(CheckPlan, RefusesAnEpochOfOtherSamples) {
  TrainingPlan plan;
  plan.update_steps_per_epoch = 7;
  plan.samples_per_epoch = 200;
  EXPECT_EQ(message([&] { check_plan(position(), plan); }), "no error");
  plan.samples_per_epoch = 192;
  EXPECT_NE(message([&] { check_plan(position(), plan); }).find("dataloader_drop_last"), std::string::npos);
}

TEST(MoveTo, AnotherEpochLengthKeepsTheNumberOfSteps) {
  TrainingPlan plan;
  plan.update_steps_per_epoch = 7;
  plan.samples_per_epoch = 201;
  auto moved = position();
  move_to(moved, plan, 12, 201);
  EXPECT_EQ(moved.epoch, 1);
  EXPECT_EQ(moved.update_steps_done, 5);
  EXPECT_EQ(moved.dataset_size, 201);
  EXPECT_EQ(moved.samples_per_epoch, 201);
  plan.update_steps_per_epoch = 10;
  move_to(moved, plan, 12, 300);
  EXPECT_EQ(moved.epoch, 1);
  EXPECT_EQ(moved.update_steps_done, 2);
}

checkpoint::RunRecord record_of(const TrainingArguments& arguments) {
  return make_trainer_record(arguments, 200, 2, 1);
}

TEST(CompareRuns, SaysWhichArgumentTakesEffect) {
  TrainingArguments before, now;
  now.output_dir = "elsewhere";
  now.logging_steps = 7;
  now.save_steps = 9;
  const auto compare_now = [&] {
    return compare_runs(record_of(before), record_of(now), to_json(before), now, /*within_epoch=*/true);
  };
  EXPECT_EQ(describe_changed_arguments(compare_now()), "");
  now.learning_rate = 1e-3;
  now.lr_scheduler_type = "cosine";
  EXPECT_EQ(
      describe_changed_arguments(compare_now()),
      "warning: other arguments than the checkpoint's run had; the old value takes effect: learning_rate 5e-05 "
      "(not 0.001); the new value takes effect: lr_scheduler_type \"cosine\" (was \"linear\")");
  now.lr_scheduler_type = "reduce_lr_on_plateau";
  EXPECT_NE(message([&] { compare_now(); }).find("give --lr-scheduler-type linear"), std::string::npos);
  keep_arguments(to_json(before), now);
  EXPECT_EQ(now.learning_rate, 5e-5);
  EXPECT_EQ(now.lr_scheduler_type, "reduce_lr_on_plateau");
}

TEST(CompareRuns, SeedAndSamplingAreRefusedUnlessAllowed) {
  TrainingArguments before, now;
  const auto refused = [&](bool within_epoch) {
    return compare_runs(record_of(before), record_of(now), to_json(before), now, within_epoch).record.refused;
  };
  now.data_seed = 42;  // as the seed: nothing changes
  EXPECT_TRUE(refused(true).empty());
  now.seed = 43;
  EXPECT_EQ(refused(true).size(), 1U) << "data_seed is still 42";
  now.data_seed.reset();
  EXPECT_EQ(refused(false).size(), 2U);
  now.resume_anyway = "seed";
  EXPECT_TRUE(refused(true).empty());
  now.train_sampling_strategy = TrainSamplingStrategy::sequential;
  ASSERT_EQ(refused(true).size(), 1U);
  EXPECT_EQ(describe(refused(true)[0]),
            "train_sampling_strategy: \"random\" in the checkpoint, now \"sequential\"");
  EXPECT_TRUE(refused(false).empty()) << "between epochs another order is harmless";
}

TEST(CompareRuns, TheBestModelOfAnotherMetricNoLongerCounts) {
  TrainingArguments before, now;
  const auto forgets = [&] {
    return compare_runs(record_of(before), record_of(now), to_json(before), now, false).forgets_best;
  };
  now.metric_for_best_model = "eval_loss";
  EXPECT_FALSE(forgets()) << "it is the default";
  now.greater_is_better = true;
  EXPECT_TRUE(forgets());
}

TEST(ResumeRows, ThereIsOneForEachArgumentInItsOrder) {
  const auto arguments = training_argument_rows();
  const auto rows = training_resume_rows();
  ASSERT_EQ(rows.size(), arguments.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_STREQ(rows[i].name, arguments[i].name);
}

TEST(ResumeSource, TakesTheWordsOfTransformers) {
  TrainingArguments arguments;
  const auto source = [&](const char* text) {
    arguments.resume_from_checkpoint = text;
    return resume_source(arguments);
  };
  EXPECT_EQ(source(""), ResumeSource::start);
  EXPECT_EQ(source("False"), ResumeSource::start);
  EXPECT_EQ(source("True"), ResumeSource::newest_or_start);
  EXPECT_EQ(source("true"), ResumeSource::newest_or_start);
  EXPECT_EQ(source("auto"), ResumeSource::newest_or_start);
  EXPECT_EQ(source("latest"), ResumeSource::newest);
  EXPECT_EQ(source("out/checkpoint-4"), ResumeSource::path);
}

TEST(NoteBest, TakesStrictImprovementsOnly) {
  TrainingArguments arguments;
  TrainerState state;
  const auto note = [&](int64_t step, double loss) {
    state.global_step = step;
    return note_best(state, arguments, {{"eval_loss", loss}, {"eval_accuracy", 1 - loss}});
  };
  EXPECT_FALSE(note(5, std::nan("")));
  EXPECT_TRUE(note(10, 0.5));
  EXPECT_FALSE(note(20, 0.5));
  EXPECT_FALSE(note(30, 0.6));
  EXPECT_TRUE(note(40, 0.4));
  EXPECT_EQ(state.best_global_step, 40);
  EXPECT_EQ(state.best_metric, 0.4);
  arguments.metric_for_best_model = "accuracy";
  state = TrainerState();
  EXPECT_TRUE(note(1, 0.9));
  EXPECT_TRUE(note(2, 0.5));
  EXPECT_FALSE(note(3, 0.9));
}

TEST(NoteBest, AMissingMetricIsAnErrorWhereItIsNeeded) {
  TrainingArguments arguments;
  arguments.metric_for_best_model = "f1";
  TrainerState state;
  EXPECT_FALSE(note_best(state, arguments, {{"eval_loss", 1}}));
  arguments.load_best_model_at_end = true;
  EXPECT_NE(message([&] {
              note_best(state, arguments, {{"eval_loss", 1}});
            }).find("eval_f1"),
            std::string::npos);
}

TEST(TrainerStateJson, IsReadAsItWasWritten) {
  TrainerState state;
  state.epoch = 1.0 / 3;
  state.global_step = 7;
  state.best_metric = 0.1;
  state.best_global_step = 5;
  state.best_model_checkpoint = "out/checkpoint-5";
  state.log_history.push_back(
      {.values = {{"loss", 0.1 + 0.2}, {"pearson", std::nan("")}}, .epoch = 0.25, .step = 3});
  const auto read = trainer_state_from_json(to_json(state), "x");
  EXPECT_EQ(to_json(read), to_json(state));
  EXPECT_EQ(read.log_history[0].values.at("loss"), 0.1 + 0.2);
  EXPECT_TRUE(std::isnan(read.log_history[0].values.at("pearson")));
  EXPECT_EQ(message([] { trainer_state_from_json("[1]", "here/trainer_state.json"); }),
            "here/trainer_state.json is no trainer_state.json: expected a JSON object");
}

}  // namespace
}  // namespace lockstep
