// Names that the pages' C++ examples use without declaring them. Each example is the body of a function that sees these, or, where it
// defines functions or classes, stands in a namespace of its own.
#pragma once

#include <lockstep/lockstep.h>
#include <lockstep/zoo.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <nlohmann/json.hpp>

namespace c10::cuda {
void set_device(int device);  // where LibTorch has no CUDA
}

namespace examples {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 64));
  torch::Tensor forward(torch::Tensor x) { return first(x); }
};
TORCH_MODULE(Net);

struct Sample {
  torch::Tensor input{}, target{};
  int64_t size() const { return 1; }
};

inline lockstep::World& world = lockstep::default_world();
extern Net net, model;
extern lockstep::DistributedDataParallel<Net> ddp;
extern lockstep::FusedAdamW optimizer;
extern lockstep::LRScheduler scheduler;
extern lockstep::DistributedSampler sampler;
extern lockstep::Dataset dataset;
extern lockstep::TrainingArguments args;
extern std::vector<Sample> loader;
extern std::vector<std::vector<int64_t>> sources;
extern torch::Tensor images, labels, inputs, test_images, test_labels;
extern std::vector<std::string> lines, hypotheses, references;
extern std::vector<std::pair<std::string, std::string>> mine;
extern int training, batch_size, rank, world_size, num_labels;
extern int64_t step;
extern int64_t steps, bytes, received;
extern double rate;
extern std::string id;
extern std::vector<std::string> texts;
extern lockstep::Trackers trackers;
extern std::filesystem::path best;
void tokenize(const std::string& text);
bool receive();
void train(const lockstep::Batch& batch);
void train(const Sample& sample);
struct LossOrItsValue {
  torch::Tensor operator()(const torch::Tensor& output, const torch::Tensor& target) const;
  operator double() const;
};
extern LossOrItsValue loss;
lockstep::DataLoader load(int data, std::vector<int64_t> indices, int64_t batch_size);

}  // namespace examples
