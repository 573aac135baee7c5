#include "lockstep/trainer/training_arguments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

TEST(TrainingArguments, WarmupStepsBelowOneAreAShare) {
  TrainingArguments given;
  EXPECT_EQ(given.resolved_warmup_steps(252), 0);
  given.warmup_steps = 0.1;
  EXPECT_EQ(given.resolved_warmup_steps(252), 26);
  given.warmup_steps = 30;
  EXPECT_EQ(given.resolved_warmup_steps(252), 30);
}

TEST(TrainingArguments, AShortRunLogsTenTimesUnlessToldOtherwise) {
  TrainingArguments given;
  for (const int64_t steps : {10, 39, 100, 4999}) {
    EXPECT_GE(steps / given.resolved_logging_steps(steps), 10) << steps;
  }
  EXPECT_EQ(given.resolved_logging_steps(3), 1);
  EXPECT_EQ(given.resolved_logging_steps(100000), 500);
  EXPECT_EQ(given.resolved_eval_steps(39), 3);
  given.logging_steps = 500;
  EXPECT_EQ(given.resolved_logging_steps(39), 500);
  EXPECT_EQ(given.resolved_eval_steps(39), 500);
  given.eval_steps = 7;
  EXPECT_EQ(given.resolved_eval_steps(39), 7);
}

/// What validate() says of the arguments after `change`.
std::string message(const std::function<void(TrainingArguments&)>& change) {
  TrainingArguments given;
  change(given);
  try {
    given.validate();
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TrainingArguments, BadValuesAreNamed) {
  EXPECT_EQ(message([](auto&) {}), "no error");
  EXPECT_EQ(message([](auto& a) { a.per_device_train_batch_size = 0; }),
            "per_device_train_batch_size is 0; it must be 1 or more");
  EXPECT_EQ(message([](auto& a) {
              a.lr_scheduler_type = "square";
            }).find("lr_scheduler_type is square; it must be linear, cosine, "),
            0);
  EXPECT_EQ(message([](auto& a) {
              a.lr_scheduler_kwargs = "{\"cycles\": 2}";
            }).find("lr_scheduler_kwargs: no schedule has \"cycles\"; known are decay_type, "),
            0);
  EXPECT_EQ(message([](auto& a) { a.max_steps = 0; }),
            "max_steps is 0; it must be 1 or more, or -1 for num_train_epochs");
  EXPECT_EQ(message([](auto& a) { a.learning_rate = -1; }), "learning_rate is -1; it must be 0 or more");
  EXPECT_EQ(message([](auto& a) { a.ddp_backend = "nccl"; }),
            "ddp_backend is nccl; it must be lockstep or gloo");
  EXPECT_THROW(parse_interval_strategy("eval_strategy", "always"), ValueError);
  EXPECT_EQ(message([](auto& a) { a.learning_rate = std::nan(""); }),
            "learning_rate is nan; it must be 0 or more");
  EXPECT_EQ(message([](auto& a) { a.ddp_timeout = std::chrono::seconds(0); }),
            "ddp_timeout is 0; it must be 1 second or more");
  EXPECT_EQ(message([](auto& a) { a.optim = "adafactor"; }),
            "optim is adafactor; it must be adamw_torch_fused, adamw_torch, adam or sgd");
  EXPECT_EQ(message([](auto& a) { a.max_time = "1:30"; }),
            "max_time is 1:30; it must be a whole number of seconds or DD:HH:MM:SS, above 0");
  EXPECT_EQ(message([](auto& a) { a.logging_steps = 2.5; }),
            "logging_steps is 2.5; it must be 0 or more, and a whole number if it is above 1");
  EXPECT_EQ(message([](auto& a) { a.limit_train_batches = 0; }),
            "limit_train_batches is 0; it must be above 0, and a whole number if it is above 1");
}

TEST(TrainingArguments, ArgumentsOfTheOptimizer) {
  TrainingArguments given;
  given.optim = "sgd";
  given.optim_args = "momentum=0.9, nesterov=True";
  given.validate();
  EXPECT_EQ(given.optimizer_arguments().momentum, 0.9);
  EXPECT_TRUE(given.optimizer_arguments().nesterov);
  const auto sgd = [](const char* args) {
    return message([&](auto& a) {
      a.optim = "sgd";
      a.optim_args = args;
    });
  };
  EXPECT_EQ(sgd("momentum"),
            "optim_args is \"momentum\"; it must be NAME=VALUE, or several with commas between");
  EXPECT_EQ(sgd("momentum=-1"), "optim_args: momentum is -1; it must be 0 or more");
  EXPECT_EQ(sgd("momentum=0.9,nesterov=perhaps"),
            "optim_args: nesterov is perhaps; it must be true or false");
  EXPECT_EQ(sgd("nesterov=true"), "optim_args: nesterov needs a momentum above 0 and no dampening");
  EXPECT_EQ(sgd("weight_decay=0.1"),
            "optim_args has weight_decay, which is an argument of its own: set weight_decay");
  EXPECT_EQ(sgd("beta1=0.9"), "optim_args has \"beta1\"; sgd takes momentum, dampening and nesterov");
  EXPECT_EQ(message([](auto& a) { a.optim_args = "momentum=0.9"; }),
            "optim_args has \"momentum\", but adamw_torch_fused takes none; sgd takes some");
}

TEST(TrainingArguments, AScheduleThatFollowsAMetricNeedsAnEvaluation) {
  TrainingArguments given;
  given.lr_scheduler_type = "reduce_lr_on_plateau";
  EXPECT_THROW(given.validate(), ValueError);
  given.eval_strategy = IntervalStrategy::EPOCH;
  given.lr_scheduler_kwargs = R"({"mode": "max", "factor": 0.5, "patience": 2, "threshold_mode": "abs"})";
  given.validate();
  const auto options = given.plateau_options();
  EXPECT_EQ(options.mode, ReduceLROnPlateauOptions::Mode::max);
  EXPECT_EQ(options.threshold_mode, ReduceLROnPlateauOptions::ThresholdMode::abs);
  EXPECT_EQ(options.factor, 0.5);
  EXPECT_EQ(options.patience, 2);
  for (const char* bad : {R"({"num_cycles": 2})", R"({"factor": 1})", R"({"mode": "best"})"}) {
    given.lr_scheduler_kwargs = bad;
    EXPECT_THROW(given.validate(), ValueError) << bad;
  }
}

TEST(TrainingArguments, TheBestMetric) {
  TrainingArguments given;
  EXPECT_EQ(given.best_metric(), "eval_loss");
  EXPECT_FALSE(given.best_metric_is_greatest());
  given.metric_for_best_model = "f1";
  EXPECT_EQ(given.best_metric(), "eval_f1");
  EXPECT_TRUE(given.best_metric_is_greatest());
  given.metric_for_best_model = "eval_f1";
  EXPECT_EQ(given.best_metric(), "eval_f1");
  given.greater_is_better = false;
  EXPECT_FALSE(given.best_metric_is_greatest());
}

TEST(TrainingArguments, Durations) {
  EXPECT_EQ(parse_duration("90"), std::chrono::seconds(90));
  EXPECT_EQ(parse_duration("01:02:03:04"), std::chrono::seconds(((24 + 2) * 60 + 3) * 60 + 4));
  for (const char* bad : {"", "0", "00:00:00:00", "1:2", "1:2:3:4:5", "-1", "1h", "1:2:3:", ":1:2:3", "1.5",
                          "99999999999999999999"}) {
    EXPECT_FALSE(parse_duration(bad)) << bad;
  }
}

TEST(TrainingArguments, LimitsOfBatches) {
  EXPECT_EQ(limited_batches(1, 7), 7);
  EXPECT_EQ(limited_batches(0.5, 7), 3);
  EXPECT_EQ(limited_batches(0.01, 7), 1);
  EXPECT_EQ(limited_batches(3, 7), 3);
  EXPECT_EQ(limited_batches(1e30, 7), 7);
}

TEST(TrainingArguments, AShareOfTheStepsIsRoundedUp) {
  TrainingArguments given;
  given.logging_steps = 0.1;
  EXPECT_EQ(given.resolved_logging_steps(252), 26);
  EXPECT_EQ(given.resolved_eval_steps(252), 26);
  given.eval_steps = 0.5;
  EXPECT_EQ(given.resolved_eval_steps(25), 13);
}

}  // namespace
}  // namespace lockstep
