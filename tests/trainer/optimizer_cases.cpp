// Optimizers, schedules, rules for parameters and the average of the weights.
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/parameters.h"
#include "lockstep/trainer/optimizer_choice.h"
#include "tests/trainer/trainer_cases.h"

namespace lockstep::testing {
namespace {

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

TEST(Optimizers, GradientsOfBeforeTheTrainingDoNotCount) {
  const SharedFolder folder;
  const auto args = plain_arguments(folder);
  const at::Tensor expected = weights_after(args);
  for (const double stale : {1.0, std::nan("")}) {
    SCOPED_TRACE(stale);
    Net net = make_net();
    net->forward(at::full({2, 3}, stale, at::kDouble)).sum().backward();
    EXPECT_TRUE(at::equal(weights_after(args, {}, net), expected));
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
                           "is not a regular expression");
}

/// One weight under two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : in(register_parameter("in", at::full({4, 3}, 0.5, at::kDouble))),
        out(register_parameter("out", in)) {}
  at::Tensor forward(const at::Tensor& x) {
    return x.matmul(in.t()).tanh().matmul(out).tanh().matmul(in.t());
  }
  at::Tensor in, out;
};
TORCH_MODULE(Tied);

TEST(Optimizers, UpdateTiedWeightsOnce) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.per_device_train_batch_size = 24 / world().size();
  args.max_grad_norm = 0.1;
  const Dataset data = points(24);
  Tied alone, net;
  std::vector<int64_t> numbers(24);
  std::iota(numbers.begin(), numbers.end(), 0);
  const Batch all = data.collate(numbers);
  const Loss loss = cross_entropy_sum(alone(all["x"]), all["label"]);
  (loss.sum / 24).backward();
  const double norm = alone->in.grad().norm().item<double>();
  Trainer trainer(net, args, world(),
                  {.train_dataset = data, .compute_loss = [](auto& model, const Batch& b) {
                     return cross_entropy_sum(model(b["x"]), b["label"]);
                   }});
  trainer.train();
  ASSERT_EQ(trainer.state().global_step, 1);
  EXPECT_NEAR(trainer.state().log_history.front().values.at("grad_norm"), norm, 1e-9);
  const at::Tensor expected = alone->in.detach() - alone->in.grad() * std::min(1.0, 0.1 / (norm + 1e-6));
  EXPECT_TRUE(at::allclose(net->in, expected, 1e-9, 1e-9));
}

// LibTorch's own step a tensor once per listing, so the Trainer says so; ours do not.
TEST(Optimizers, OneThatListsATensorTwiceIsWarnedOf) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  const auto messages_with = [&](const auto& make) {
    Tied net;
    Trainer trainer(
        net, args, world(),
        {.train_dataset = points(24),
         .compute_loss = [](auto& model,
                            const Batch& b) { return cross_entropy_sum(model(b["x"]), b["label"]); },
         .optimizer = make(net)});
    ::testing::internal::CaptureStderr();
    trainer.train();
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string warning = "warning: the optimizer lists 2 parameters, of which 1 are different tensors";
  const auto has_warning = [&](const auto& make) {
    return messages_with(make).find(warning) != std::string::npos;
  };
  EXPECT_EQ(
      has_warning([](Tied& net) { return std::make_shared<torch::optim::SGD>(net->parameters(), 0.1); }),
      world().rank() == 0);
  EXPECT_FALSE(
      has_warning([](Tied& net) { return std::make_shared<torch::optim::SGD>(parameters(net), 0.1); }));
  EXPECT_FALSE(has_warning([](Tied& net) { return std::make_shared<FusedSGD>(net->parameters(), 0.1); }));
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
    check_throws<ValueError>(
        run, "metric_for_best_model is eval_beauty, which the evaluation does not give; it gives eval_loss");
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

TEST(Optimizers, TheEndIsOfTheModelThatIsKept) {
  const SharedFolder folder;
  auto args = plain_arguments(folder);
  args.ema_decay = 0.5;
  args.per_device_train_batch_size = 24 / world().size();
  args.num_train_epochs = 3;
  args.eval_strategy = IntervalStrategy::EPOCH;
  args.save_strategy = SaveStrategy::EPOCH;
  args.metric_for_best_model = "mark";
  args.greater_is_better = true;
  const Dataset data = points(24);
  struct Note : TrainerCallback {
    std::string name() const override { return "note"; }
    void on_step_end(CallbackContext& context) override {
      steps.push_back(weights_of(context.model).clone());
    }
    void on_train_end(CallbackContext& context) override { end = weights_of(context.model).clone(); }
    std::vector<at::Tensor> steps;
    at::Tensor end;
  };
  for (const bool loads_best : {true, false}) {
    SCOPED_TRACE(loads_best);
    args.load_best_model_at_end = loads_best;
    Net net = make_net();
    const auto note = std::make_shared<Note>();
    int evaluations = 0;
    Trainer trainer(net, args, world(),
                    {.train_dataset = data,
                     .eval_dataset = data,
                     .compute_loss = net_loss,
                     .compute_metrics = [&](const at::Tensor&, const at::Tensor&) -> Metrics {
                       return {{"mark", ++evaluations == 2 ? 1.0 : 0.0}};
                     },
                     .callbacks = {note}});
    trainer.train();
    trainer.save_model(folder.path / "model");
    const auto saved = checkpoint::load_safetensors(folder.path / "model" / "model.safetensors").tensors;
    std::vector<at::Tensor> parameters;
    for (const auto& parameter : net->named_parameters())
      parameters.push_back(saved.at(parameter.key()).flatten());
    ASSERT_EQ(note->steps.size(), 3U);
    const at::Tensor second = (note->steps[0] + note->steps[1]) / 2;
    const at::Tensor expected = loads_best ? second : (second + note->steps[2]) / 2;
    EXPECT_TRUE(at::allclose(note->end, expected, 1e-12, 1e-12));
    EXPECT_TRUE(at::equal(at::cat(parameters), note->end));
    EXPECT_EQ(trainer.state().best_global_step, 2);
    // Reported is what was measured with that model, or nothing.
    EXPECT_EQ(trainer.last_evaluation().empty(), loads_best);
  }
}

TEST(Optimizers, BiasesAreNotDecayedByAnyOfThem) {
  for (const char* const name : {"sgd", "adam", "adamw_torch", "adamw_torch_fused"}) {
    for (const bool divided : {false, true}) {
      SCOPED_TRACE(name);
      TrainingArguments args;
      args.optim = name;
      args.weight_decay = 0.1;
      args.learning_rate = 5e-5;
      args.zero_redundancy_optimizer = divided;
      const Net net = make_net();
      const auto optimizer =
          make_optimizer(args, *net, {{.pattern = "bias", .learning_rate = 1e-3}}, world());
      bool has_bias = false;
      for (const auto& group : optimizer->param_groups()) {
        const bool is_bias = group.params().at(0).dim() == 1;
        has_bias = has_bias || is_bias;
        EXPECT_EQ(group.options().get_lr(), is_bias ? 1e-3 : 5e-5);
        const double decay =
            args.optim == "sgd" ? static_cast<const torch::optim::SGDOptions&>(group.options()).weight_decay()
            : args.optim == "adam"
                ? static_cast<const torch::optim::AdamOptions&>(group.options()).weight_decay()
                : static_cast<const torch::optim::AdamWOptions&>(group.options()).weight_decay();
        EXPECT_EQ(decay, is_bias ? 0 : 0.1);
      }
      EXPECT_TRUE(has_bias);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
