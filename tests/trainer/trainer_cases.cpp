#include "tests/trainer/trainer_cases.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <stdlib.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/metrics/classification.h"
#include "lockstep/trainer/run/step_sums.h"
#include "lockstep/trainer/sums.h"

namespace lockstep::testing {

SharedFolder::SharedFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "lockstep_trainer_XXXXXX").string();
  if (world().rank() == 0) CHECK_TRUE(mkdtemp(name.data()) != nullptr);
  path = world().broadcast_bytes(name);
}

SharedFolder::~SharedFolder() {
  world().barrier();
  if (world().rank() == 0) std::filesystem::remove_all(path);
}

TrainingArguments plain_arguments(const SharedFolder& folder) {
  TrainingArguments args;
  args.output_dir = folder.path / "out";
  args.overwrite_output_dir = true;
  args.num_train_epochs = 1;
  args.optim = "sgd";
  args.learning_rate = 1;
  args.lr_scheduler_type = "constant";
  args.max_grad_norm = 0;
  args.disable_tqdm = true;
  args.logging_steps = 1;
  return args;
}

NetImpl::NetImpl(int64_t features, int64_t classes, double p)
    : first(register_module("first", torch::nn::Linear(features, 8))),
      second(register_module("second", torch::nn::Linear(8, classes))),
      dropout(p) {
  to(at::kDouble);
}

at::Tensor NetImpl::forward(const at::Tensor& x) {
  return second->forward(at::dropout(at::tanh(first->forward(x)), dropout, is_training()));
}

Dataset points(int64_t size, int64_t features, int64_t classes) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({size, features}, at::kDouble);
  const at::Tensor rule = at::randn({features, classes}, at::kDouble);
  return tensor_dataset({{"x", x}, {"label", x.matmul(rule).argmax(1)}});
}

at::Tensor weights_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.detach().flatten());
  return at::cat(all);
}

Net make_net(double dropout) {
  at::manual_seed(1);
  return Net(3, 4, dropout);
}

namespace {

// --- modules

template <class M>
void expect_learns(M model, const SharedFolder& folder) {
  const Dataset train = points(96);
  auto args = plain_arguments(folder);
  args.num_train_epochs = 40;
  args.logging_steps = 100;
  args.per_device_train_batch_size = 24;
  Trainer trainer(
      model, args, world(),
      {.train_dataset = train,
       .eval_dataset = train,
       .compute_loss = [](auto& net, const Batch& b) { return cross_entropy_sum(net(b["x"]), b["label"]); },
       .metrics = {accuracy()}});
  trainer.train();
  EXPECT_GT(trainer.evaluate().at("eval_accuracy"), 0.9);
}

TEST(Modules, OfAnyKindLearn) {
  const SharedFolder folder;
  expect_learns(make_net(), folder);
  at::manual_seed(1);
  torch::nn::Sequential sequential(torch::nn::Linear(3, 16), torch::nn::Linear(16, 4));
  sequential->to(at::kDouble);
  expect_learns(sequential, folder);
  expect_learns(std::make_shared<NetImpl>(3, 4), folder);
}

// A holder's way to call a module averages as a call does; its own members are behind module().
TEST(Modules, AForwardThroughAnArrowAverages) {
  const SharedFolder folder;
  const auto train = [&](const auto& compute_loss) {
    Net net = make_net();
    auto args = plain_arguments(folder);
    args.per_device_train_batch_size = 4;
    Trainer(net, args, world(), {.train_dataset = points(24), .compute_loss = compute_loss}).train();
    return weights_of(*net);
  };
  const at::Tensor called = train(net_loss);
  const at::Tensor by_arrow = train([](TrainedModel<Net>& net, const Batch& b) {
    CHECK_TRUE(net->is_training() && net->parameters().size() == 4);
    CHECK_TRUE(net->parameters()[0].is_same(net.module()->first->weight));
    return cross_entropy_sum(net->forward(b["x"]), b["label"]);
  });
  CHECK_EQUAL(by_arrow, called);
}

// --- random numbers

TEST(RandomNumbers, DependOnTheStepAndNotOnWhatWasDrawn) {
  const SharedFolder folder;
  struct Draws : TrainerCallback {
    std::string name() const override { return "draws"; }
    void on_step_begin(CallbackContext&) override { at::rand({world().rank() + 1}); }
  };
  const auto train = [&](uint64_t seed, bool draws) {
    auto args = plain_arguments(folder);
    args.per_device_train_batch_size = 4;
    args.seed = seed;
    args.data_seed = 1;
    Net net = make_net(0.5);
    std::vector<std::shared_ptr<TrainerCallback>> callbacks;
    if (draws) callbacks.push_back(std::make_shared<Draws>());
    Trainer(net, args, world(),
            {.train_dataset = points(24), .compute_loss = net_loss, .callbacks = std::move(callbacks)})
        .train();
    return weights_of(*net);
  };
  const at::Tensor weights = train(1, false);
  EXPECT_TRUE(at::equal(train(1, true), weights));
  EXPECT_FALSE(at::equal(train(2, false), weights));
}

// --- what Lightning's users know

TEST(Limits, ShortenEpochsAndEvaluations) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.per_device_train_batch_size = args.per_device_eval_batch_size = 2;
  const int size = world().size();
  const Dataset data = points(20 * size);
  std::vector<std::vector<int64_t>> seen;
  const auto run = [&] {
    seen.clear();
    Net net = make_net();
    Trainer trainer(net, args, world(),
                    {.train_dataset = data,
                     .eval_dataset = data,
                     .compute_loss = net_loss,
                     .on_samples = [&](int64_t, const std::vector<int64_t>& ids) { seen.push_back(ids); }});
    trainer.train();
    int64_t evaluations = 0;
    for (const auto& entry : trainer.state().log_history)
      evaluations += entry.values.contains("eval_loss") ? 1 : 0;
    return std::pair(trainer.state().global_step, evaluations);
  };
  EXPECT_EQ(run(), (std::pair<int64_t, int64_t>(10, 0)));
  args.limit_train_batches = 0.5;
  args.num_train_epochs = 2;
  args.val_check_interval = 2;
  EXPECT_EQ(run(), (std::pair<int64_t, int64_t>(10, 5)));
  EXPECT_NE(seen[0], seen[5]);
  args.val_check_interval = 0;
  args.limit_train_batches = 1;
  args.overfit_batches = 3;
  EXPECT_EQ(run(), (std::pair<int64_t, int64_t>(6, 0)));
  EXPECT_EQ(seen[0], seen[3]);
  args.overfit_batches = 0;
  args.fast_dev_run = 2;
  args.output_dir = folder.path / "nothing";
  EXPECT_EQ(run(), (std::pair<int64_t, int64_t>(2, 1)));
  EXPECT_FALSE(std::filesystem::exists(args.output_dir));
  args.fast_dev_run = 0;
  args.max_time = "1";
  args.num_train_epochs = 1e6;
  args.logging_steps = 1e6;
  const auto begin = std::chrono::steady_clock::now();
  run();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

// --- one training after another

/// Ends the first training after a step, by a stop or an exception, and leaves every flag set. Notes the progress.
struct EndsTheFirst : TrainerCallback {
  EndsTheFirst(int64_t last, bool fails) : last(last), fails(fails) {}
  std::string name() const override { return "ends_the_first"; }
  void on_step_end(CallbackContext& context) override {
    if (context.state.global_step != last) return;
    last = -1;
    if (fails) throw Error("enough");
    context.control.should_training_stop = context.control.should_epoch_stop = true;
  }
  void on_train_end(CallbackContext& context) override { context.control = {true, true, true, true, true}; }
  void on_log(CallbackContext& context) override { samples_done.push_back(context.progress.samples_done); }
  int64_t last;
  bool fails;
  std::vector<int64_t> samples_done{};
};

/// What there is after a training.
struct Left {
  at::Tensor weights;
  TrainerState state;
  std::vector<Metrics> log{};
  Metrics last_evaluation, evaluation;
  int64_t first_step = 0;
  std::vector<int64_t> samples_done;
  std::vector<std::string> files{};
};

Metrics without_times(Metrics values) {
  std::erase_if(values, [](const auto& item) {
    return item.first.ends_with("_runtime") || item.first.ends_with("_per_second");
  });
  return values;
}

Left train_and_look(Trainer& trainer, const torch::nn::Module& net, EndsTheFirst& callback) {
  callback.samples_done.clear();
  trainer.train();
  Left left{.weights = weights_of(net),
            .state = trainer.state(),
            .last_evaluation = without_times(trainer.last_evaluation()),
            .evaluation = without_times(trainer.evaluate()),
            .first_step = trainer.first_step(),
            .samples_done = callback.samples_done};
  for (const auto& entry : left.state.log_history) left.log.push_back(without_times(entry.values));
  const auto folder = trainer.args().output_dir;
  world().barrier();  // rank 0 has written its log
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder))
    left.files.push_back(file.path().lexically_relative(folder).string());
  std::sort(left.files.begin(), left.files.end());
  world().barrier();
  return left;
}

TEST(Trainings, ASecondOneInheritsNothing) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.per_device_train_batch_size = 2;
  args.num_train_epochs = 2;
  args.optim_args = "momentum=0.9";
  args.lr_scheduler_type = "linear";
  args.learning_rate = 0.1;
  args.ema_decay = 0.5;
  args.eval_strategy = IntervalStrategy::STEPS;
  args.eval_steps = 2;
  args.save_steps = 4;
  args.load_best_model_at_end = true;
  const Dataset data = points(16 * world().size()), others = points(10 * world().size() + 1);
  // The whole training, after one that ends behind step `before`; 0: after none.
  const auto run = [&](int64_t before, bool fails) {
    const auto callback = std::make_shared<EndsTheFirst>(before, fails);
    Net net = make_net();
    Trainer trainer(
        net, args, world(),
        {.train_dataset = data,
         .eval_dataset = others,
         .compute_loss = [](auto& net, const Batch& b) { return cross_entropy_sum(net(b["x"]), b["label"]); },
         .metrics = {accuracy()},
         .callbacks = {callback}});
    const TrainerState& state = trainer.state();
    if (before > 0) {
      if (fails) {
        EXPECT_THROW(trainer.train(), Error);
      } else {
        trainer.train();
      }
      EXPECT_EQ(state.global_step, before);
      const at::NoGradGuard no_grad;
      const Net begun = make_net();
      for (size_t p = 0; p < net->parameters().size(); ++p)
        net->parameters()[p].copy_(begun->parameters()[p]);
    }
    return train_and_look(trainer, *net, *callback);
  };
  const Left alone = run(0, false);
  EXPECT_EQ(alone.state.global_step, 16);
  EXPECT_TRUE(alone.state.best_global_step);
  for (const auto& [before, fails] : std::vector<std::pair<int64_t, bool>>{{5, false}, {7, true}}) {
    SCOPED_TRACE((fails ? "after a failure in step " : "after a stop behind step ") + std::to_string(before));
    const Left after = run(before, fails);
    EXPECT_TRUE(at::equal(after.weights, alone.weights));
    EXPECT_EQ(after.log, alone.log);
    EXPECT_EQ(after.state.global_step, alone.state.global_step);
    EXPECT_EQ(after.state.best_metric, alone.state.best_metric);
    EXPECT_EQ(after.state.best_global_step, alone.state.best_global_step);
    EXPECT_EQ(after.state.best_model_checkpoint, alone.state.best_model_checkpoint);
    EXPECT_EQ(after.last_evaluation, alone.last_evaluation);
    EXPECT_EQ(after.evaluation, alone.evaluation);
    EXPECT_EQ(after.first_step, 0);
    EXPECT_EQ(after.samples_done, alone.samples_done);
    EXPECT_EQ(after.files, alone.files);
  }
}

TEST(Trainings, OneThatCannotBeginLeavesTheOneBefore) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.per_device_train_batch_size = 4;
  args.ema_decay = 0.5;
  args.eval_strategy = IntervalStrategy::EPOCH;
  const Dataset data = points(24 * world().size());
  Net net = make_net();
  Trainer trainer(net, args, world(),
                  {.train_dataset = data, .eval_dataset = data, .compute_loss = net_loss});
  trainer.train();
  const auto* const optimizer = trainer.optimizer();
  const Metrics before = without_times(trainer.evaluate());
  EXPECT_EQ(before, without_times(trainer.last_evaluation()));
  world().barrier();
  if (world().rank() == 0) {  // a file in the place of the output directory
    std::filesystem::remove_all(args.output_dir);
    std::ofstream(args.output_dir) << "in the way";
  }
  world().barrier();
  EXPECT_THROW(trainer.train(), Error);
  EXPECT_EQ(trainer.state().global_step, 6);
  EXPECT_EQ(trainer.optimizer(), optimizer);
  EXPECT_EQ(without_times(trainer.last_evaluation()), before);
  EXPECT_EQ(without_times(trainer.evaluate()), before);  // of the average, too
}

TEST(Trainings, TheRanksSumsKeepTheirNames) {
  const double rank = world().rank(), size = world().size();
  detail::StepSums sums{.loss = 0.5,
                        .count = 3,
                        .out_of_time = rank == 0 ? 1.0 : 0.0,
                        .interrupted = rank + 1 == size ? 1.0 : 0.0,
                        .terminated = 0,
                        .checkpoint = {.written = 1, .failed = 0, .committing = rank},
                        .tokens = 1 << 20};
  sum_over_ranks(sums, [&](const at::Tensor& all) { world().all_reduce(all); });
  EXPECT_EQ(sums.loss, 0.5 * size);
  EXPECT_EQ(sums.count, 3 * size);
  EXPECT_EQ(sums.out_of_time, 1);
  EXPECT_EQ(sums.interrupted, 1);
  EXPECT_EQ(sums.terminated, 0);
  EXPECT_EQ(sums.checkpoint.written, size);
  EXPECT_EQ(sums.checkpoint.failed, 0);
  EXPECT_EQ(sums.checkpoint.committing, size * (size - 1) / 2);
  EXPECT_EQ(sums.tokens, size * (1 << 20));
}

// --- long runs

int64_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident;
}

TEST(Memory, DoesNotGrowOverTenThousandSteps) {
  struct Watch : TrainerCallback {
    std::string name() const override { return "watch"; }
    void on_step_end(CallbackContext& context) override {
      if (context.state.global_step == 2000) early = resident_pages();
      if (context.state.global_step == 10'000) late = resident_pages();
    }
    int64_t early = 0, late = 0;
  };
  ONLY_IF(world().size() == 1);
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.max_steps = 10'000;
  args.logging_steps = 5000;
  args.per_device_train_batch_size = 4;
  args.learning_rate = 0.01;
  const auto watch = std::make_shared<Watch>();
  Net net = make_net(0.1);
  Trainer trainer(net, args, world(),
                  {.train_dataset = points(800), .compute_loss = net_loss, .callbacks = {watch}});
  trainer.train();
  EXPECT_LT((watch->late - watch->early) * 4096, 1 << 20);
}

// --- mistakes

TEST(Mistakes, AreNamed) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  using Compute = std::function<Loss(TrainedModel<Net>&, const Batch&)>;
  const auto run = [&](Compute compute, std::vector<std::shared_ptr<Metric>> metrics = {}) {
    Net net = make_net();
    Trainer trainer(net, args, world(),
                    {.train_dataset = points(24),
                     .eval_dataset = points(24),
                     .compute_loss = std::move(compute),
                     .metrics = std::move(metrics)});
    trainer.train();
    trainer.evaluate();
  };
  check_throws<ValueError>([&] { run({}); }, "neither compute_loss nor forward");
  check_throws<ValueError>([&] { run([](auto&, const Batch&) { return Loss{.sum = at::zeros({})}; }); },
                           "a sum without a gradient");
  args.gradient_checkpointing = true;
  check_throws<ValueError>([&] { run(net_loss); }, "gradient_checkpointing: no part of the model");
  args.gradient_checkpointing = false;
  check_throws<ValueError>(
      [&] { run([](auto& net, const Batch& b) { return Loss{.sum = net(b["x"]), .count = 1}; }); },
      "a sum that is no scalar");
  check_throws<ValueError>(
      [&] { run([](auto& net, const Batch& b) {
              return net_loss(net, Batch{{"y", b["x"]}});
            }); },
      "the batch has no tensor \"x\"; it has y");
  const auto without_outputs = [&] {
    run([](auto& net, const Batch& b) { return Loss{.sum = net_loss(net, b).sum, .count = 1}; },
        {accuracy()});
  };
  if (world().size() == 1) {
    check_throws<ValueError>(without_outputs, "compute_loss gave no outputs; the metric accuracy needs them");
  } else {
    check_throws<ReportedError>(without_outputs, "");
  }
  // Before the first step, and told once.
  const auto recorder = std::make_shared<Recorder>();
  Net whole = make_net();
  Trainer unfit(whole, args, world(),
                {.train_dataset = points(24),
                 .eval_dataset = points(24),
                 .compute_loss = [](auto& net, const Batch& b) { return mse_sum(net(b["x"]), net(b["x"])); },
                 .metrics = {f1()},
                 .callbacks = {recorder}});
  EXPECT_ANY_THROW(unfit.train());
  EXPECT_EQ(recorder->events, "init_end ");
  if (world().size() > 1) {
    for (const bool of_training : {true, false}) {
      Trainer divided(whole, args, world(),
                      {.train_dataset = points(24 + (of_training ? world().rank() : 0)),
                       .eval_dataset = points(24 + (of_training ? 0 : world().rank())),
                       .compute_loss = net_loss});
      check_throws<ReportedError>([&] { divided.train(); }, "all ranks need the same data");
    }
  }
  args.label_smoothing_factor = 0.1;
  check_throws<ValueError>([&] { run(net_loss); }, "label_smoothing_factor has no effect on a compute_loss");
  args.label_smoothing_factor = 0;
  args.eval_strategy = IntervalStrategy::EPOCH;
  check_throws<ValueError>(
      [&] {
        Net net = make_net();
        Trainer(net, args, world(), {.train_dataset = points(24), .compute_loss = net_loss});
      },
      "there is no validation set");
  check_throws<ValueError>(
      [] {
        tensor_dataset({{"a", at::zeros({2})}, {"b", at::zeros({3})}});
      },
      "\"b\" has 3 samples, \"a\" has 2");
}

}  // namespace
}  // namespace lockstep::testing
