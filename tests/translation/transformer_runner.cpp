// Runs our transformer for comparison with original.py:
//   transformer_runner train MODEL_DIR INPUTS ARGUMENTS OUTPUT_DIR
//     INPUTS: safetensors with source, target and labels, int64 [samples, length]; ARGUMENTS: a training_args.json.
//     Writes the log, the model and first_gradients.safetensors, what the first step's optimizer got.
//   transformer_runner logits MODEL_DIR INPUTS OUTPUT_FILE
//   transformer_runner generate MODEL_DIR INPUTS OUTPUT_FILE NUM_BEAMS USE_CACHE LENGTH_PENALTY
//     Writes ids, int64 [samples, longest], filled up with -1, scores, double [samples], and row_steps.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cstdlib>

#include "lockstep/base/file.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/init.h"
#include "lockstep/trainer/output/output_dir.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/zoo/models/transformer/generator.h"
#include "lockstep/zoo/models/transformer/transformer.h"

namespace {

using namespace lockstep;

struct KeepFirstGradients : TrainerCallback {
  explicit KeepFirstGradients(std::filesystem::path to) : path(std::move(to)) {}
  std::string name() const override { return "KeepFirstGradients"; }
  void on_pre_optimizer_step(CallbackContext& context) override {
    if (context.state.global_step != 0 || context.group.rank() != 0) return;
    std::map<std::string, at::Tensor> gradients;
    for (const auto& item : context.model.named_parameters())
      gradients[item.key()] = item.value().grad().clone();
    checkpoint::save_safetensors(path, gradients);
  }
  std::filesystem::path path;
};

void train(const std::filesystem::path& directory, const std::filesystem::path& inputs,
           const std::filesystem::path& arguments, const std::filesystem::path& output) {
  const auto world = init();
  auto model = models::load_transformer(directory);
  auto args = training_arguments_from_json(read_file(arguments), arguments.string());
  args.output_dir = output;
  const auto tensors = checkpoint::load_safetensors(inputs).tensors;
  Trainer trainer(
      model, args, world,
      {.train_dataset = tensor_dataset({{"source", tensors.at("source")},
                                        {"target", tensors.at("target")},
                                        {"labels", tensors.at("labels")}}),
       .compute_loss =
           [&](auto& net, const Batch& batch) {
             const at::Tensor logits = net(models::TransformerBatch{batch["source"], batch["target"]});
             const at::Tensor rows = batch["target"].ne(net.module()->config().pad_token_id);
             return cross_entropy_sum(
                 logits, batch["labels"].masked_select(rows),
                 {.ignore_index = net.module()->config().pad_token_id, .label_smoothing = 0.1});
           },
       .callbacks = {std::make_shared<KeepFirstGradients>(output / "first_gradients.safetensors")}});
  trainer.train();
  trainer.save_model(output);
  if (world.rank() == 0) save_trainer_state(trainer.state(), output);
}

void generate(const std::filesystem::path& directory, const std::filesystem::path& inputs,
              const std::filesystem::path& output, int64_t beams, bool use_cache, double length_penalty) {
  auto model = models::load_transformer(directory);
  std::vector<std::vector<int64_t>> sources;
  for (const at::Tensor& row : checkpoint::load_safetensors(inputs).tensors.at("source").unbind(0)) {
    const at::Tensor ids = row.masked_select(row.ne(model->config().pad_token_id));
    sources.emplace_back(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.size(0));
  }
  models::Generator generator(model);
  const auto result = generator.generate(
      sources,
      {.max_new_tokens = 30, .num_beams = beams, .length_penalty = length_penalty, .use_cache = use_cache});
  std::vector<std::vector<int64_t>> ids;
  std::vector<double> scores;
  for (const auto& sentence : result.sentences) {
    ids.push_back(sentence.ids);
    scores.push_back(sentence.score);
  }
  checkpoint::save_safetensors(output, {{"ids", models::pad_ids(ids, -1)},
                                        {"scores", at::tensor(scores, at::kDouble)},
                                        {"row_steps", at::tensor({result.row_steps}, at::kLong)}});
}

int run(const std::vector<std::string>& words) {
  const std::string& mode = words.at(1);
  if (mode == "train") {
    train(words.at(2), words.at(3), words.at(4), words.at(5));
  } else if (mode == "logits") {
    const at::NoGradGuard no_grad;
    auto model = models::load_transformer(words.at(2));
    model->eval();
    const auto tensors = checkpoint::load_safetensors(words.at(3)).tensors;
    checkpoint::save_safetensors(
        words.at(4),
        {{"logits", model(models::TransformerBatch{tensors.at("source"), tensors.at("target")})}});
  } else {
    generate(words.at(2), words.at(3), words.at(4), std::atoi(words.at(5).c_str()), words.at(6) == "true",
             std::atof(words.at(7).c_str()));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("transformer_runner", [&] { return run({argv, argv + argc}); });
}
