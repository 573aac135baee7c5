// Trains a narrow ResNet-18 on random pictures with the Trainer:
//   pictures_runner ARGUMENTS [sync]
// ARGUMENTS: a training_args.json, whose output_dir gets the model, buffers included. sync: batches are normalized over all
// ranks.
#include <ATen/Context.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include "lockstep/base/file.h"
#include "lockstep/base/main.h"
#include "lockstep/comm/init.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/zoo/models/resnet.h"

namespace {

using namespace lockstep;

int run(int argc, char** argv) {
  const auto args = training_arguments_from_json(read_file(argv[1]), argv[1]);
  at::manual_seed(args.seed);
  models::ResNet model(
      models::ResNetOptions{.num_classes = 4, .stem = models::ResNetOptions::Stem::cifar, .width = 8});
  const Dataset pictures =
      tensor_dataset({{"image", at::randn({45, 3, 8, 8})}, {"label", at::randint(4, {45}, at::kLong)}});
  auto world = init();
  if (argc > 2) convert_sync_batchnorm(*model, world);
  Trainer trainer(model, args, world,
                  {.train_dataset = pictures,
                   .eval_dataset = pictures,
                   .forward = [](auto& net, const Batch& batch) { return net(batch["image"]); }});
  trainer.train();
  trainer.save_model(args.output_dir);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("pictures_runner", [&] { return run(argc, argv); });
}
