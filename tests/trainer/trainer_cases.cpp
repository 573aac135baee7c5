#include "tests/trainer/trainer_cases.h"

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <stdlib.h>
#include <torch/nn/modules/container/sequential.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/metrics/classification.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/sgd.h"

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

namespace {

Net make_net(double dropout = 0) {
  at::manual_seed(1);
  return Net(3, 4, dropout);
}

// --- losses that are counted by token

struct TaggerImpl : torch::nn::Module {
  TaggerImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(10, 5))),
        out(register_module("out", torch::nn::Linear(5, 6))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& tokens) { return out->forward(embedding->forward(tokens)); }
  torch::nn::Embedding embedding;
  torch::nn::Linear out;
};
TORCH_MODULE(Tagger);

// Twelve texts of 0 to 9 tokens; the labels of padding are -100.
Batch ragged_texts() {
  at::manual_seed(3);
  const at::Tensor tokens = at::randint(0, 10, {12, 9}, at::kLong);
  const at::Tensor labels = at::randint(0, 6, {12, 9}, at::kLong);
  const int64_t lengths[] = {3, 0, 9, 1, 5, 2, 8, 0, 4, 7, 1, 6};
  for (int64_t row = 0; row < 12; ++row) labels[row].slice(0, lengths[row]).fill_(-100);
  return {{"tokens", tokens}, {"labels", labels}};
}

Tagger make_tagger() {
  at::manual_seed(5);
  return Tagger();
}

// transformers#34191: how a global batch is cut into micro-batches and ranks must not matter.
TEST(TokenLoss, TheGradientIsThatOfAllTokensTogether) {
  const Batch all = ragged_texts();
  const SharedFolder folder;
  for (const double smoothing : {0.0, 0.1}) {
    Tagger whole = make_tagger();
    const Loss loss =
        cross_entropy_sum(whole->forward(all["tokens"]), all["labels"], {.label_smoothing = smoothing});
    EXPECT_EQ(loss.count, 46);
    (loss.sum / loss.count).backward();
    const at::Tensor before = weights_of(*whole);
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : whole->parameters()) gradients.push_back(parameter.grad().flatten());
    const at::Tensor expected = at::cat(gradients);

    for (const int64_t batch : {1, 2, 4, 6, 12}) {
      if (12 % (batch * world().size()) != 0) continue;
      auto args = plain_arguments(folder);
      args.per_device_train_batch_size = batch;
      args.gradient_accumulation_steps = 12 / (batch * world().size());
      Tagger model = make_tagger();
      Trainer trainer(model, args, world(),
                      {.train_dataset = tensor_dataset(all), .compute_loss = [&](auto& net, const Batch& b) {
                         return cross_entropy_sum(net(b["tokens"]), b["labels"],
                                                  {.label_smoothing = smoothing});
                       }});
      trainer.train();
      EXPECT_EQ(trainer.state().global_step, 1);
      const at::Tensor gradient = before - weights_of(*model);  // one step with learning rate 1
      const double error = ((gradient - expected).norm() / expected.norm()).item<double>();
      EXPECT_LT(error, 1e-12) << "micro-batches of " << batch;
      EXPECT_NEAR(trainer.state().log_history.front().values.at("loss"), loss.sum.item<double>() / 46, 1e-12);
    }
  }
}

TEST(TokenLoss, AStepWithoutTokensChangesNothing) {
  const SharedFolder folder;
  const Batch none{{"tokens", at::zeros({6, 3}, at::kLong)}, {"labels", at::full({6, 3}, -100, at::kLong)}};
  auto args = plain_arguments(folder);
  args.per_device_train_batch_size = 6;
  Tagger model = make_tagger();
  const at::Tensor before = weights_of(*model);
  Trainer trainer(model, args, world(),
                  {.train_dataset = tensor_dataset(none), .compute_loss = [](auto& net, const Batch& b) {
                     return cross_entropy_sum(net(b["tokens"]), b["labels"]);
                   }});
  EXPECT_EQ(trainer.train().at("train_loss"), 0);
  EXPECT_TRUE(at::equal(before, weights_of(*model)));
}

TEST(TokenLoss, AMeanIsMultipliedByItsCount) {
  const at::Tensor mean = at::tensor({2.5}, at::kDouble).requires_grad_();
  EXPECT_EQ(from_mean(mean, 4).sum.item<double>(), 10);
  EXPECT_EQ(from_mean(mean * NAN, 0).sum.item<double>(), 0);
}

// --- modules, optimizers

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

at::Tensor weights_after(TrainingArguments args, std::shared_ptr<torch::optim::Optimizer> optimizer = {},
                         Net net = make_net(), std::vector<ParameterRule> rules = {}) {
  args.per_device_train_batch_size = 4;
  Trainer trainer(net, args, world(),
                  {.train_dataset = points(24),
                   .compute_loss = net_loss,
                   .optimizer = std::move(optimizer),
                   .parameter_rules = std::move(rules)});
  trainer.train();
  return weights_of(*net);
}

TEST(Optimizers, AreTheOnesThatAreNamed) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.learning_rate = 0.01;
  args.optim_args = "momentum=0.9,nesterov=true";
  Net net = make_net();
  const auto own = std::make_shared<torch::optim::SGD>(
      net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true));
  EXPECT_TRUE(at::allclose(weights_after(args), weights_after(args, own, net), 1e-12, 1e-12));
  args.optim_args = "";
  for (const char* name : {"adam", "adamw_torch", "adamw_torch_fused"}) {
    args.optim = name;
    const at::Tensor whole = weights_after(args);
    EXPECT_FALSE(at::equal(whole, weights_of(*make_net())));
    args.zero_redundancy_optimizer = true;
    EXPECT_TRUE(at::equal(weights_after(args), whole)) << name;
    args.zero_redundancy_optimizer = false;
  }
}

TEST(Optimizers, AnotherTrainingBeginsItsScheduleAnew) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.lr_scheduler_type = "linear";
  args.per_device_train_batch_size = 4;
  Net net = make_net();
  const auto own = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
  Trainer trainer(net, args, world(),
                  {.train_dataset = points(24), .compute_loss = net_loss, .optimizer = own});
  for (int training = 0; training < 2; ++training) {
    trainer.train();
    EXPECT_EQ(trainer.state().log_history.front().values.at("learning_rate"), 0.1);
  }
}

TEST(Optimizers, RulesGiveParametersTheirOwnLearningRate) {
  const SharedFolder folder;
  const auto args = plain_arguments(folder);
  Net net = make_net(), before = make_net();
  weights_after(args, {}, net, {{.pattern = "^first\\.", .learning_rate = 0}});
  EXPECT_TRUE(at::equal(net->first->weight, before->first->weight));
  EXPECT_FALSE(at::equal(net->second->weight, before->second->weight));
  check_throws<ValueError>([&] { weights_after(args, {}, make_net(), {{.pattern = "third"}}); },
                           "the parameter rule \"third\" fits no parameter");
  check_throws<ValueError>([&] { weights_after(args, {}, make_net(), {{.pattern = "("}}); },
                           "no regular expression");
}

TEST(Optimizers, TheRateFallsOnAPlateau) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.learning_rate = 1e-9;  // the loss does not become better by the threshold
  args.lr_scheduler_type = "reduce_lr_on_plateau";
  args.lr_scheduler_kwargs = R"({"patience": 0, "factor": 0.5, "eps": 0})";
  args.eval_strategy = IntervalStrategy::EPOCH;
  args.num_train_epochs = 3;
  args.per_device_train_batch_size = 24;
  const Dataset data = points(24);
  Net net = make_net();
  Trainer trainer(net, args, world(),
                  {.train_dataset = data, .eval_dataset = data, .compute_loss = net_loss});
  trainer.train();
  std::vector<double> rates;
  for (const auto& entry : trainer.state().log_history) {
    if (entry.values.contains("learning_rate")) rates.push_back(entry.values.at("learning_rate"));
  }
  EXPECT_EQ(rates, (std::vector<double>{1e-9, 1e-9, 5e-10}));

  args.metric_for_best_model = "beauty";
  const auto run = [&] {
    Trainer(net, args, world(), {.train_dataset = data, .eval_dataset = data, .compute_loss = net_loss})
        .train();
  };
  if (world().size() == 1) {
    check_throws<ValueError>(run, "metric_for_best_model is beauty; the evaluation has eval_loss");
  } else {
    check_throws<ReportedError>(run, "");
  }
}

TEST(Optimizers, AnAverageOfTheWeightsIsWhatIsEvaluated) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.ema_decay = 0.5;
  args.per_device_train_batch_size = 24 / world().size();
  args.num_train_epochs = 2;
  const Dataset data = points(24);
  Net net = make_net();
  std::vector<at::Tensor> weights;
  struct Note : TrainerCallback {
    explicit Note(std::vector<at::Tensor>& all) : all_(all) {}
    std::string name() const override { return "note"; }
    void on_step_end(CallbackContext& context) override { all_.push_back(weights_of(context.model).clone()); }
    std::vector<at::Tensor>& all_;
  };
  Trainer trainer(net, args, world(),
                  {.train_dataset = data,
                   .eval_dataset = data,
                   .compute_loss = net_loss,
                   .callbacks = {std::make_shared<Note>(weights)}});
  trainer.train();
  ASSERT_EQ(weights.size(), 2U);
  const double averaged = trainer.evaluate().at("eval_loss");
  EXPECT_TRUE(at::equal(weights_of(*net), weights[1]));
  // By hand.
  const at::Tensor average = (weights[0] + weights[1]) / 2;
  int64_t at = 0;
  const at::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) {
    parameter.copy_(average.slice(0, at, at + parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
  const Batch all = data.collate([&] {
    std::vector<int64_t> numbers(24);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }());
  const Loss loss = cross_entropy_sum(net->forward(all["x"]), all["label"]);
  EXPECT_NEAR(averaged, loss.sum.item<double>() / 24, 1e-12);
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

// --- evaluation, predictions

TEST(Evaluation, PredictionsComeInOrderAndAreFilledUp) {
  const SharedFolder folder;
  Tagger model = make_tagger();
  const Batch all = ragged_texts();
  // Rows as long as the batch's longest text, so that outputs of different batches differ in shape.
  Dataset data = tensor_dataset(all);
  const auto collate = data.collate;
  const auto length_of = [](const at::Tensor& labels) {
    return std::max<int64_t>(1, (labels != -100).sum(1).max().item<int64_t>());
  };
  data.collate = [=](const std::vector<int64_t>& numbers) {
    const Batch rows = collate(numbers);
    const int64_t length = length_of(rows["labels"]);
    return Batch{{"tokens", rows["tokens"].slice(1, 0, length)},
                 {"labels", rows["labels"].slice(1, 0, length)}};
  };
  auto args = plain_arguments(folder);
  args.per_device_eval_batch_size = 2;
  const auto seen = std::make_shared<int>(0);
  Trainer trainer(
      model, args, world(),
      {.compute_loss = [](auto& net,
                          const Batch& b) { return cross_entropy_sum(net(b["tokens"]), b["labels"]); },
       .metrics = {perplexity(), accuracy()},
       .compute_metrics =
           [seen](const at::Tensor& outputs, const at::Tensor& labels) {
             ++*seen;
             return Metrics{
                 {"rows", static_cast<double>(outputs.size(0))},
                 {"right", ((outputs.argmax(-1) == labels) & (labels != -100)).sum().item<double>()}};
           }});
  const auto prediction = trainer.predict(data);
  const at::NoGradGuard no_grad;
  const at::Tensor expected = model->forward(all["tokens"]);
  const Loss loss = cross_entropy_sum(expected, all["labels"]);
  EXPECT_NEAR(prediction.metrics.at("test_loss"), loss.sum.item<double>() / 46, 1e-12);
  EXPECT_NEAR(prediction.metrics.at("test_perplexity"), std::exp(loss.sum.item<double>() / 46), 1e-5);
  const double right =
      ((expected.argmax(-1) == all["labels"]) & (all["labels"] != -100)).sum().item<double>();
  EXPECT_EQ(prediction.metrics.at("test_right"), right);
  EXPECT_NEAR(prediction.metrics.at("test_accuracy"), right / 46, 1e-12);
  EXPECT_EQ(prediction.metrics.at("test_rows"), 12);
  EXPECT_EQ(*seen, world().rank() == 0 ? 1 : 0);
  EXPECT_EQ(prediction.outputs.defined(), world().rank() == 0);
  if (world().rank() != 0) return;
  ASSERT_EQ(prediction.outputs.sizes(), (std::vector<int64_t>{12, 9, 6}));
  for (int64_t row = 0; row < 12; ++row) {
    const int64_t length = length_of(all["labels"].slice(0, row, row + 1));
    EXPECT_TRUE(at::allclose(prediction.outputs[row].slice(0, 0, length),
                             expected[row].slice(0, 0, length).to(at::kFloat)));
    EXPECT_TRUE(at::equal(prediction.labels[row], all["labels"][row]));
  }
}

TEST(Evaluation, WithoutLabelsThereAreOutputsAlone) {
  const SharedFolder folder;
  Net net = make_net();
  const Batch labelled = points(7).collate({0, 1, 2, 3, 4, 5, 6});
  Trainer trainer(
      net, plain_arguments(folder), world(),
      {.forward = [](auto& model, const Batch& b) { return model(b["x"]); }, .metrics = {accuracy()}});
  const auto prediction = trainer.predict(tensor_dataset({{"x", labelled["x"]}}));
  EXPECT_TRUE(prediction.metrics.empty());
  if (world().rank() == 0) {
    EXPECT_TRUE(at::allclose(prediction.outputs, net->forward(labelled["x"]).to(at::kFloat)));
  }
  EXPECT_GT(trainer.evaluate(tensor_dataset(labelled)).at("eval_loss"), 0);
}

// --- callbacks

struct Recorder : TrainerCallback {
  std::string name() const override { return "recorder"; }
  void on_init_end(CallbackContext&) override { events += "init_end "; }
  void on_train_begin(CallbackContext&) override { events += "train_begin "; }
  void on_train_end(CallbackContext&) override { events += "train_end "; }
  void on_epoch_begin(CallbackContext&) override { events += "epoch_begin "; }
  void on_epoch_end(CallbackContext&) override { events += "epoch_end "; }
  void on_step_begin(CallbackContext&) override { events += "step_begin "; }
  void on_substep_end(CallbackContext&) override { events += "substep_end "; }
  void on_pre_optimizer_step(CallbackContext&) override { events += "pre_optimizer_step "; }
  void on_optimizer_step(CallbackContext&) override { events += "optimizer_step "; }
  void on_step_end(CallbackContext&) override { events += "step_end "; }
  void on_evaluate(CallbackContext&) override { events += "evaluate "; }
  void on_predict(CallbackContext&) override { events += "predict "; }
  void on_save(CallbackContext&) override { events += "save "; }
  void on_log(CallbackContext&) override { events += "log "; }
  std::string events;
};

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
