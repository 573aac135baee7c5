// Losses, evaluations and predictions that are counted by token.
#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "lockstep/metrics/classification.h"
#include "tests/trainer/trainer_cases.h"

namespace lockstep::testing {
namespace {

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

TEST(TokenLoss, LabelsMayBeProbabilities) {
  const at::Tensor logits = at::randn({2, 5, 4}, at::kDouble), labels = at::randint(4, {2, 5}, at::kLong);
  const at::Tensor sure = at::one_hot(labels, 4).to(at::kDouble);
  for (const double smoothing : {0.0, 0.1}) {
    const Loss hard = cross_entropy_sum(logits, labels, {.label_smoothing = smoothing});
    const Loss soft = cross_entropy_sum(logits, sure, {.label_smoothing = smoothing});
    EXPECT_NEAR(soft.sum.item<double>(), hard.sum.item<double>(), 1e-12);
    EXPECT_EQ(soft.count, 10);
  }
  const at::Tensor mixed = .25 * sure + .75 * sure.roll(1, 1);
  const double by_hand = -(mixed * logits.log_softmax(-1)).sum().item<double>();
  EXPECT_NEAR(cross_entropy_sum(logits, mixed).sum.item<double>(), by_hand, 1e-12);
  EXPECT_EQ(cross_entropy_sum(logits.to(at::kBFloat16), mixed).sum.scalar_type(), at::kFloat);
  EXPECT_THROW(cross_entropy_sum(logits, mixed.narrow(2, 0, 3)), ValueError);
  EXPECT_THROW(cross_entropy_sum(logits, sure.to(at::kLong)), ValueError);
  EXPECT_THROW(cross_entropy_sum(at::randn({}), at::randn({})), ValueError);
}

TEST(TokenLoss, AMeanIsMultipliedByItsCount) {
  const at::Tensor mean = at::tensor({2.5}, at::kDouble).requires_grad_();
  EXPECT_EQ(from_mean(mean, 4).sum.item<double>(), 10);
  EXPECT_EQ(from_mean(mean * NAN, 0).sum.item<double>(), 0);
}

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

TEST(Evaluation, OutputsHaveARowForEachSample) {
  const SharedFolder folder;
  Tagger model = make_tagger();
  const Batch all = ragged_texts();
  Trainer trainer(model, plain_arguments(folder), world(), {.compute_loss = [](auto& net, const Batch& b) {
                    Loss loss = cross_entropy_sum(net(b["tokens"]), b["labels"]);
                    loss.outputs = loss.outputs.flatten(0, 1);
                    return loss;
                  }});
  check_throws<ValueError>([&] { trainer.predict(tensor_dataset(all)); },
                           "samples; predict() and compute_metrics need [samples, ...]");
}

TEST(Evaluation, WithoutLabelsThereAreOutputsAlone) {
  const SharedFolder folder;
  Net net = make_net();
  const Batch labeled = points(7).collate({0, 1, 2, 3, 4, 5, 6});
  Trainer trainer(
      net, plain_arguments(folder), world(),
      {.forward = [](auto& model, const Batch& b) { return model(b["x"]); }, .metrics = {accuracy()}});
  const auto prediction = trainer.predict(tensor_dataset({{"x", labeled["x"]}}));
  EXPECT_TRUE(prediction.metrics.empty());
  if (world().rank() == 0) {
    EXPECT_TRUE(at::allclose(prediction.outputs, net->forward(labeled["x"]).to(at::kFloat)));
  }
  EXPECT_GT(trainer.evaluate(tensor_dataset(labeled)).at("eval_loss"), 0);
}

}  // namespace
}  // namespace lockstep::testing
