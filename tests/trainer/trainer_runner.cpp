// Trains a tagger in double precision for comparison with transformers' Trainer:
//   trainer_runner INPUTS ARGUMENTS OUTPUT_DIR
// INPUTS: safetensors with tokens and labels, int64 [samples, length], and the first weights; ARGUMENTS: a
// training_args.json. Writes OUTPUT_DIR/trainer_state.json and OUTPUT_DIR/model.safetensors.
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/file.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/init.h"
#include "lockstep/trainer/trainer.h"

namespace {

using namespace lockstep;

struct TaggerImpl : torch::nn::Module {
  TaggerImpl(const at::Tensor& words, const at::Tensor& tags)
      : embedding(register_module("embedding", torch::nn::Embedding(words.size(0), words.size(1)))),
        out(register_module("out", torch::nn::Linear(tags.size(1), tags.size(0)))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& tokens) { return out->forward(embedding->forward(tokens)); }
  torch::nn::Embedding embedding;
  torch::nn::Linear out;
};
TORCH_MODULE(Tagger);

int run(char** argv) {
  const auto inputs = checkpoint::load_safetensors(argv[1]).tensors;
  auto args = training_arguments_from_json(read_file(argv[2]), argv[2]);
  args.output_dir = argv[3];
  Tagger model(inputs.at("embedding.weight"), inputs.at("out.weight"));
  {
    const at::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(inputs.at(item.key()));
  }
  auto world = init();
  const auto forward = [](auto& net, const Batch& batch) { return net(batch["tokens"]); };
  Trainer trainer(
      model, args, world,
      {.train_dataset = tensor_dataset({{"tokens", inputs.at("tokens")}, {"labels", inputs.at("labels")}}),
       .forward = forward});
  trainer.train();
  trainer.save_model(args.output_dir);
  if (world.rank() == 0) save_trainer_state(trainer.state(), args.output_dir);
  return 0;
}

}  // namespace

int main(int, char** argv) {
  return lockstep::run_main("trainer_runner", [&] { return run(argv); });
}
