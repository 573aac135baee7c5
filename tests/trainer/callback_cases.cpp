// Callbacks: order of events, what they ask for, what they throw.
#include <ATen/ops/equal.h>

#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/metrics/classification.h"
#include "tests/trainer/trainer_cases.h"

namespace lockstep::testing {
namespace {

TEST(Callbacks, EventsComeInTransformersOrder) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.per_device_train_batch_size = 2;
  args.gradient_accumulation_steps = 2;
  args.eval_strategy = IntervalStrategy::EPOCH;
  const Dataset data = points(4 * world().size());
  const auto recorder = std::make_shared<Recorder>();
  Net net = make_net();
  Trainer trainer(
      net, args, world(),
      {.train_dataset = data, .eval_dataset = data, .compute_loss = net_loss, .callbacks = {recorder}});
  trainer.train();
  trainer.predict(data);
  trainer.save_model(folder.path / "saved");
  EXPECT_EQ(
      recorder->events,
      "init_end train_begin epoch_begin step_begin substep_end pre_optimizer_step optimizer_step step_end "
      "log save epoch_end log evaluate log train_end log predict save ");
  if (world().rank() == 0) {
    const auto saved = checkpoint::load_safetensors(folder.path / "saved/model.safetensors");
    EXPECT_EQ(saved.tensors.size(), 4U);
    EXPECT_TRUE(at::equal(saved.tensors.at("first.weight"), net->first->weight));
  }
}

TEST(Callbacks, APredictionWithoutLabelsIsAnEventToo) {
  const SharedFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  Net net = make_net();
  Trainer trainer(
      net, plain_arguments(folder), world(),
      {.forward = [](auto& model, const Batch& b) { return model(b["x"]); }, .callbacks = {recorder}});
  trainer.predict(tensor_dataset({{"x", points(5).collate({0, 1, 2, 3, 4})["x"]}}));
  EXPECT_EQ(recorder->events, "init_end predict ");
}

// What one rank asks for, all do.
TEST(Callbacks, AStopOnOneRankStopsAll) {
  struct Stop : TrainerCallback {
    std::string name() const override { return "stop"; }
    void on_step_end(CallbackContext& context) override {
      if (context.group.rank() == context.group.size() - 1 && context.state.global_step == 2) {
        context.control.should_training_stop = true;
      }
    }
  };
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.per_device_train_batch_size = 2;
  Net net = make_net();
  Trainer trainer(
      net, args, world(),
      {.train_dataset = points(24), .compute_loss = net_loss, .callbacks = {std::make_shared<Stop>()}});
  trainer.train();
  EXPECT_EQ(trainer.state().global_step, 2);
}

// Also between the end of a step and the next one.
TEST(Callbacks, AStopOnOneRankStopsAllInWhicheverEvent) {
  struct Stop : TrainerCallback {
    explicit Stop(std::string where) : where_(std::move(where)) {}
    std::string name() const override { return "stop"; }
    void on_train_begin(CallbackContext& context) override { stop("train_begin", context); }
    void on_epoch_begin(CallbackContext& context) override { stop("epoch_begin", context); }
    void on_epoch_end(CallbackContext& context) override { stop("epoch_end", context); }
    void on_log(CallbackContext& context) override { stop("log", context); }
    void on_evaluate(CallbackContext& context) override { stop("evaluate", context); }
    void on_save(CallbackContext& context) override { stop("save", context); }
    void stop(const std::string& event, CallbackContext& context) const {
      const bool is_last = context.group.rank() == context.group.size() - 1;
      if (event == where_ && is_last) context.control.should_training_stop = true;
    }
    std::string where_;
  };
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.per_device_train_batch_size = 2;
  args.num_train_epochs = 2;
  args.eval_strategy = IntervalStrategy::STEPS;
  args.eval_steps = 2;
  args.save_steps = 3;
  const Dataset data = points(24);
  const int64_t epoch = 12 / world().size();
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {"train_begin", 0}, {"epoch_begin", 0}, {"log", 1}, {"evaluate", 2}, {"save", 3}, {"epoch_end", epoch}};
  for (const auto& [event, step] : cases) {
    SCOPED_TRACE(event);
    Net net = make_net();
    Trainer trainer(net, args, world(),
                    {.train_dataset = data,
                     .eval_dataset = data,
                     .compute_loss = net_loss,
                     .callbacks = {std::make_shared<Stop>(event)}});
    EXPECT_FALSE(std::isnan(trainer.train().at("train_loss")));
    EXPECT_EQ(trainer.state().global_step, step);
  }
}

TEST(Callbacks, AnExceptionNamesItsCallback) {
  struct Fails : TrainerCallback {
    std::string name() const override { return "fails"; }
    void on_log(CallbackContext&) override { throw std::runtime_error("no more paper"); }
  };
  const SharedFolder folder;
  Net net = make_net();
  Trainer trainer(
      net, plain_arguments(folder), world(),
      {.train_dataset = points(24), .compute_loss = net_loss, .callbacks = {std::make_shared<Fails>()}});
  check_throws<Error>([&] { trainer.train(); }, "the callback fails failed in on_log: no more paper");
}

TEST(Callbacks, TrainingStopsWhenNothingImproves) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.learning_rate = 0;
  args.num_train_epochs = 10;
  args.per_device_train_batch_size = 24;
  const Dataset data = points(24);
  Net net = make_net();
  const auto run = [&](EarlyStoppingOptions options) {
    Trainer trainer(net, args, world(),
                    {.train_dataset = data,
                     .eval_dataset = data,
                     .compute_loss = net_loss,
                     .metrics = {accuracy()},
                     .callbacks = {early_stopping(options), throughput()}});
    trainer.train();
    EXPECT_GT(trainer.state().log_history.front().values.at("steps_per_second"), 0);
    return trainer.state().global_step;
  };
  check_throws<ValueError>([&] { run({}); }, "early stopping needs evaluations");
  args.eval_strategy = IntervalStrategy::EPOCH;
  EXPECT_EQ(run({.patience = 2}), 3);
  EXPECT_EQ(run({.patience = 1, .metric = "accuracy"}), 2);
  check_throws<ValueError>([&] { run({.metric = "beauty"}); }, "no metric eval_beauty; it has eval_accuracy");
}

TEST(Callbacks, AnEvaluationWithoutANumberIsNotTheBest) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.num_train_epochs = 5;
  args.per_device_train_batch_size = 24;
  args.eval_strategy = IntervalStrategy::EPOCH;
  const Dataset data = points(24);
  for (const bool greater : {true, false}) {
    SCOPED_TRACE(greater);
    double mark = std::nan("");
    Net net = make_net();
    Trainer trainer(net, args, world(),
                    {.train_dataset = data,
                     .eval_dataset = data,
                     .compute_loss = net_loss,
                     .compute_metrics = [&](const at::Tensor&, const at::Tensor&) -> Metrics {
                       const double now = mark;
                       mark = std::isnan(mark) ? 0 : mark + (greater ? 1 : -1);
                       return {{"mark", now}};
                     },
                     .callbacks = {early_stopping({.metric = "mark", .greater_is_better = greater})}});
    trainer.train();
    EXPECT_EQ(trainer.state().global_step, 5);  // each evaluation is better than the one before
  }
}

// --- a failure on one rank

TEST(Failures, OfOneRankEndTheStepOnAll) {
  ONLY_IF(world().size() > 1);
  const SharedFolder folder;
  for (const bool is_in_loss : {true, false}) {
    struct Fails : TrainerCallback {
      std::string name() const override { return "fails"; }
      void on_substep_end(CallbackContext& context) override {
        if (is_on && context.state.global_step == 1 && world().rank() == 1) throw Error("no more paper");
      }
      bool is_on = false;
    };
    const auto fails = std::make_shared<Fails>();
    fails->is_on = !is_in_loss;
    auto args = plain_arguments(folder);
    args.per_device_train_batch_size = 2;
    args.gradient_accumulation_steps = 2;
    int passes = 0;
    Net net = make_net();
    const auto loss = [&](TrainedModel<Net>& model, const Batch& batch) {
      Loss result = net_loss(model, batch);
      if (is_in_loss && world().rank() == 1 && ++passes == 3) throw Error("no more paper");
      return result;
    };
    Trainer trainer(net, args, world(),
                    {.train_dataset = points(96), .compute_loss = loss, .callbacks = {fails}});
    try {
      trainer.train();
      FAIL() << "no error";
    } catch (const StepFailedError& error) {
      EXPECT_NE(world().rank(), 1);
      EXPECT_EQ(error.ranks(), std::vector<int>{1});
      EXPECT_NE(std::string(error.what()).find("no more paper"), std::string::npos) << error.what();
    } catch (const Error& error) {
      EXPECT_EQ(world().rank(), 1) << error.what();
    }
    // All learned one step, and the ranks are together.
    at::Tensor weights = weights_of(*net), first = weights.clone();
    world().broadcast(first);
    EXPECT_TRUE(at::equal(weights, first));
  }
}

TEST(Failures, OfOneRankInAnEvaluation) {
  ONLY_IF(world().size() > 1);
  const SharedFolder folder;
  Net net = make_net();
  bool fails = false;
  const auto loss = [&](TrainedModel<Net>& model, const Batch& batch) {
    if (fails && world().rank() == 1) throw 7;
    return net_loss(model, batch);
  };
  Trainer trainer(net, plain_arguments(folder), world(),
                  {.train_dataset = points(32), .eval_dataset = points(32), .compute_loss = loss});
  for (int time = 0; time < 2; ++time) {
    fails = false;
    trainer.evaluate();
    fails = true;
    try {
      trainer.evaluate();
      FAIL() << "no error";
    } catch (const StepFailedError& error) {  // on rank 1, too: its own is not a std::exception
      EXPECT_EQ(error.ranks(), std::vector<int>{1});
      const std::string part = ": an exception that is not derived from std::exception";
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
