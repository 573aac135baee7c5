// A run of resnet_ddp's model and optimizer in double precision, on given weights and pictures:
// resnet_steps WEIGHTS.safetensors BATCH_SIZE STEPS OUTPUT_DIR. The file also has "images" and "labels".
#include <cstdlib>
#include <string>

#include "lockstep/base/main.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/init.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/zoo/models/resnet.h"
#include "lockstep/zoo/tasks/model_weights.h"

int main(int, char** argv) {
  using namespace lockstep;
  return run_main("resnet_steps", [&] {
    auto world = init();
    auto tensors = checkpoint::load_safetensors(argv[1]).tensors;
    const auto train = tensor_dataset({{"image", tensors.at("images")}, {"label", tensors.at("labels")}});
    tensors.erase("images");
    tensors.erase("labels");
    models::ResNet model(models::ResNetOptions{.num_classes = 10});
    model->to(at::kDouble);
    tasks::load_weights(*model, tensors, argv[1]);
    TrainingArguments args;
    args.max_steps = std::atoi(argv[3]);
    args.per_device_train_batch_size = std::atoi(argv[2]);
    args.output_dir = argv[4];
    args.optim = "sgd";
    args.optim_args = "momentum=0.9";
    args.learning_rate = 0.01;
    args.weight_decay = 1e-5;
    args.max_grad_norm = 0;
    args.lr_scheduler_type = "constant";
    args.logging_steps = 1;
    args.save_strategy = SaveStrategy::NO;
    args.train_sampling_strategy = TrainSamplingStrategy::sequential;
    args.disable_tqdm = true;
    Trainer trainer(model, args, world,
                    {.train_dataset = train,
                     .forward = [](auto& net, const Batch& batch) { return net(batch["image"]); },
                     .parameter_rules = {{.pattern = ".", .weight_decay = args.weight_decay}}});
    trainer.train();
    return 0;
  });
}
