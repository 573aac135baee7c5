// Runs our models on tensors from a file, for comparison with transformers:
//   bert_runner logits|gradients|train|toy MODEL_DIR INPUTS OUTPUTS [--bf16]   (safetensors files)
//   bert_runner tokens|answers MODEL_DIR INPUTS OUTPUTS         logits, loss and gradients of the other heads
//   bert_runner resave|resave_tokens|resave_answers FROM_DIR TO_DIR
// INPUTS: input_ids, token_type_ids, attention_mask (for train with a leading dimension of steps) and labels.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/stack.h>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/autocast.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/models/toy.h"

namespace {

using namespace lockstep;
using Tensors = std::map<std::string, at::Tensor>;

models::BertBatch batch_of(const Tensors& inputs) {
  return {inputs.at("input_ids"), inputs.at("token_type_ids"), inputs.at("attention_mask")};
}

void add_gradients(const torch::nn::Module& model, Tensors& outputs) {
  for (const auto& item : model.named_parameters()) {
    if (item.value().grad().defined()) outputs["grad." + item.key()] = item.value().grad();
  }
}

// The Trainer's step: clipping, AdamW with two groups, linear schedule with warm-up.
void train(models::BertForSequenceClassification model, const Tensors& inputs, Tensors& outputs) {
  const int64_t steps = inputs.at("labels").size(0);
  const double lr = 1e-3;
  const LRScheduleOptions schedule{.num_warmup_steps = 5, .num_training_steps = steps};
  FusedAdamW optimizer(parameter_groups(*model, torch::optim::AdamWOptions(lr).weight_decay(0.1)));
  std::vector<at::Tensor> losses, norms;
  for (int64_t step = 0; step < steps; ++step) {
    Tensors batch;
    for (const auto& [name, tensor] : inputs) batch[name] = tensor[step];
    set_lr(optimizer, lr * lr_factor(schedule, lr, step));
    const at::Tensor loss = at::cross_entropy_loss(model(batch_of(batch)), batch.at("labels"));
    optimizer.zero_grad();
    loss.backward();
    norms.push_back(at::scalar_tensor(clip_grad_norm_(model->parameters(), 1.0)));
    optimizer.step();
    losses.push_back(loss.detach());
  }
  outputs["losses"] = at::stack(losses);
  outputs["norms"] = at::stack(norms);
}

void run_bert(const std::string& mode, const std::string& directory, const Tensors& inputs, bool bf16,
              Tensors& outputs) {
  auto model = models::load_bert_classifier(directory);
  if (mode == "logits") {
    model->eval();
    const at::NoGradGuard no_grad;
    const AutocastGuard autocast(bf16);
    outputs["logits"] = model(batch_of(inputs));
    return;
  }
  model->train();
  if (mode == "train") return train(model, inputs, outputs);
  at::Tensor loss;
  {
    const AutocastGuard autocast(bf16);
    loss = at::cross_entropy_loss(model(batch_of(inputs)), inputs.at("labels"));
  }
  loss.backward();
  outputs["loss"] = loss.detach();
  add_gradients(*model, outputs);
}

/// INPUTS: labels [batch, length] with -100 for what does not count.
void run_tokens(const std::string& directory, const Tensors& inputs, Tensors& outputs) {
  auto model = models::load_bert<models::BertForTokenClassification>(directory);
  const at::Tensor logits = model(batch_of(inputs));
  const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), inputs.at("labels").flatten());
  loss.backward();
  outputs["logits"] = logits.detach();
  outputs["loss"] = loss.detach();
  add_gradients(*model, outputs);
}

/// INPUTS: start_positions and end_positions [batch].
void run_answers(const std::string& directory, const Tensors& inputs, Tensors& outputs) {
  auto model = models::load_bert<models::BertForQuestionAnswering>(directory);
  const at::Tensor logits = model(batch_of(inputs));
  const at::Tensor loss = (at::cross_entropy_loss(logits.select(2, 0), inputs.at("start_positions")) +
                           at::cross_entropy_loss(logits.select(2, 1), inputs.at("end_positions"))) /
                          2;
  loss.backward();
  outputs["logits"] = logits.detach();
  outputs["loss"] = loss.detach();
  add_gradients(*model, outputs);
}

void run_toy(const Tensors& inputs, Tensors& outputs) {
  models::ToyModel model;
  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) item.value().copy_(inputs.at(item.key()));
  const at::AutoGradMode enable_grad(true);
  const at::Tensor output = model(inputs.at("input"));
  at::mse_loss(output, inputs.at("target")).backward();
  outputs["output"] = output.detach();
  add_gradients(*model, outputs);
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("bert_runner", [&] {
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "resave" && argc == 4) {
      models::save_bert_classifier(models::load_bert_classifier(argv[2]), argv[3]);
      return 0;
    }
    if (mode == "resave_tokens" && argc == 4) {
      models::save_bert(*models::load_bert<models::BertForTokenClassification>(argv[2]), argv[3]);
      return 0;
    }
    if (mode == "resave_answers" && argc == 4) {
      models::save_bert(*models::load_bert<models::BertForQuestionAnswering>(argv[2]), argv[3]);
      return 0;
    }
    if (argc < 5) throw ValueError("usage: bert_runner MODE MODEL_DIR INPUTS OUTPUTS [--bf16]");
    const Tensors inputs = checkpoint::load_safetensors(argv[3]).tensors;
    Tensors outputs;
    if (mode == "toy") {
      run_toy(inputs, outputs);
    } else if (mode == "tokens") {
      run_tokens(argv[2], inputs, outputs);
    } else if (mode == "answers") {
      run_answers(argv[2], inputs, outputs);
    } else {
      run_bert(mode, argv[2], inputs, argc > 5, outputs);
    }
    checkpoint::save_safetensors(argv[4], outputs);
    return 0;
  });
}
