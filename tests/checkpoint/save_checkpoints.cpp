// Saves checkpoint-1, -2, ... into a folder, for the tests of `lockstep checkpoint` and of Python's readers.
// Usage: save_checkpoints FOLDER COUNT [MAX_SHARD_BYTES]
#include <ATen/ops/arange.h>
#include <torch/nn/modules/linear.h>

#include <cstdlib>

#include "lockstep/base/main.h"
#include "lockstep/checkpoint/parts.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/state/counters.h"

int main(int argc, char** argv) {
  return lockstep::run_main("save_checkpoints", [&] {
    const std::filesystem::path folder = argv[1];
    const uint64_t max_shard_bytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 5'000'000'000;
    torch::nn::Linear model(4, 3);
    {
      const at::NoGradGuard no_grad;
      model->weight.copy_(at::arange(12).view({3, 4}));
      model->bias.copy_(at::arange(3));
    }
    lockstep::FusedAdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.0));
    lockstep::Counters counters;
    for (int64_t& step = ++counters["step"]; step <= std::atoi(argv[2]); ++step) {
      model->zero_grad();
      model->forward(at::arange(4, at::kFloat)).sum().backward();
      optimizer.step();
      lockstep::checkpoint::save(folder / ("checkpoint-" + std::to_string(step)),
                                 {{"model", model}, {"optimizer", optimizer}, {"counters", counters}},
                                 {.max_shard_bytes = max_shard_bytes});
    }
    return 0;
  });
}
