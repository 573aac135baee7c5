// activation_checkpoint_cost LAYERS BATCH LENGTH STEPS CHECKPOINTS: seconds of each training step of a BERT, and the memory
// that its activations need, as a line of JSON.
#include <ATen/Parallel.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <torch/utils.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/places.h"
#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/cli/command_line.h"
#include "lockstep/parallel/activation_checkpoint.h"
#include "lockstep/zoo/models/bert.h"

namespace {

using lockstep::Flag;
using lockstep::FlagCheck;
using lockstep::parse_table;

/// A line of /proc/self/status, in MiB.
double status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stod(line.substr(name.size() + 1)) / 1024;
  }
  throw lockstep::Error("/proc/self/status has no " + name);
}

void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

struct Settings {
  int64_t layers = 0, batch = 0, length = 0, steps = 0;
  std::string checkpoints{};
};

constexpr auto kFlags = std::to_array<Flag<Settings>>({
    lockstep::benchmarks::count<Settings>("LAYERS", &Settings::layers, "Number of the model's layers"),
    lockstep::benchmarks::count<Settings>("BATCH", &Settings::batch, "Texts in a step"),
    lockstep::benchmarks::count<Settings>("LENGTH", &Settings::length, "Tokens in a text"),
    lockstep::benchmarks::count<Settings>("STEPS", &Settings::steps,
                                          "Steps that are measured, after a first one"),
    lockstep::benchmarks::place<Settings>("CHECKPOINTS", &Settings::checkpoints,
                                          "1: activations are computed again in backward",
                                          FlagCheck::one_of("0 1")),
});

int run(int argc, char** argv) {
  const auto given = parse_table<Settings>(
      "activation_checkpoint_cost",
      "Prints the seconds of each training step of a BERT and the memory of its activations", kFlags, argc,
      argv);
  if (!given) return 0;
  const auto [layers, batch, length, steps, checkpoints] = *given;
  at::set_num_threads(1);
  torch::manual_seed(0);
  lockstep::models::BertConfig config;
  config.num_hidden_layers = layers;
  config.hidden_size = 384;
  config.num_attention_heads = 12;
  config.intermediate_size = 1536;
  lockstep::models::BertForSequenceClassification model(config);
  if (checkpoints == "1") lockstep::set_gradient_checkpointing(*model);
  const lockstep::models::BertBatch input{at::randint(1, config.vocab_size, {batch, length}, at::kLong),
                                          {},
                                          at::ones({batch, length}, at::kLong)};
  const at::Tensor labels = at::randint(0, 2, {batch}, at::kLong);
  std::vector<double> seconds;
  double before = 0;
  for (int64_t step = -1; step < steps; ++step) {
    if (step == 0) {  // the gradients are there, and what the first step alone needs
      before = status("VmRSS");
      forget_peak();
    }
    const auto start = std::chrono::steady_clock::now();
    model->zero_grad(/*set_to_none=*/false);
    at::cross_entropy_loss(model(input), labels).backward();
    if (step >= 0) {
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  }
  std::cout << nlohmann::json{{"seconds", seconds}, {"activations_mib", status("VmHWM") - before}}.dump()
            << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("activation_checkpoint_cost", [&] { return run(argc, argv); });
}
