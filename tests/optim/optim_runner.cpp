// Runs our optimizer for comparison with Python's:
//   optim_runner adamw INPUTS OUTPUTS AMSGRAD   p.N: first values, g.STEP.N: gradients (absent: none)
//   optim_runner sgd INPUTS OUTPUTS MOMENTUM[,DAMPENING][n]   the same; n: Nesterov's
//   optim_runner clip INPUTS OUTPUTS MAX_NORM   g.N: gradients
//   optim_runner ema INPUTS OUTPUTS DECAY   v.STEP.N: the parameters' values at each step
//   optim_runner schedule   reads lines "TYPE WARMUP STEPS LR JSON" and writes a line of learning rates for each
//   optim_runner plateau    likewise for ReduceLROnPlateau
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <iostream>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/lr_scheduler.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/trainer/arguments/lr_scheduler_kwargs.h"

namespace {

using namespace lockstep;
using Tensors = std::map<std::string, at::Tensor>;

Tensors adamw(const Tensors& inputs, bool amsgrad) {
  using torch::optim::AdamWOptions;
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; inputs.contains(fmt::format("p.{}", i)); ++i) {
    parameters.push_back(inputs.at(fmt::format("p.{}", i)).clone().requires_grad_());
  }
  // Two groups: the first parameter without weight decay.
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const AdamWOptions options =
      AdamWOptions(0.01).weight_decay(0.1).betas({0.8, 0.95}).eps(1e-6).amsgrad(amsgrad);
  groups.emplace_back(std::vector<at::Tensor>{parameters[0]},
                      std::make_unique<AdamWOptions>(AdamWOptions(options).weight_decay(0)));
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin() + 1, parameters.end()),
                      std::make_unique<AdamWOptions>(options));
  FusedAdamW optimizer(groups, options);
  for (int step = 0; inputs.contains(fmt::format("g.{}.0", step)); ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto grad = inputs.find(fmt::format("g.{}.{}", step, i));
      parameters[i].mutable_grad() = grad == inputs.end() ? at::Tensor() : grad->second;
    }
    set_lr(optimizer, 0.01 / (step + 1));
    optimizer.step();
  }
  Tensors outputs;
  for (size_t i = 0; i < parameters.size(); ++i) {
    outputs[fmt::format("p.{}", i)] = parameters[i].detach();
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(
        *optimizer.state().at(parameters[i].unsafeGetTensorImpl()));
    outputs[fmt::format("exp_avg.{}", i)] = state.exp_avg();
    outputs[fmt::format("exp_avg_sq.{}", i)] = state.exp_avg_sq();
    outputs[fmt::format("step.{}", i)] = at::scalar_tensor(state.step(), at::kLong);
  }
  return outputs;
}

Tensors sgd(const Tensors& inputs, const std::string& argument) {
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; inputs.contains(fmt::format("p.{}", i)); ++i) {
    parameters.push_back(inputs.at(fmt::format("p.{}", i)).clone().requires_grad_());
  }
  const size_t comma = argument.find(',');
  FusedSGD optimizer(parameters,
                     torch::optim::SGDOptions(0.1)
                         .momentum(std::stod(argument))
                         .dampening(comma == std::string::npos ? 0 : std::stod(argument.substr(comma + 1)))
                         .nesterov(argument.ends_with('n'))
                         .weight_decay(0.05));
  for (int step = 0; inputs.contains(fmt::format("g.{}.0", step)); ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto grad = inputs.find(fmt::format("g.{}.{}", step, i));
      parameters[i].mutable_grad() = grad == inputs.end() ? at::Tensor() : grad->second;
    }
    optimizer.step();
  }
  Tensors outputs;
  for (size_t i = 0; i < parameters.size(); ++i) {
    outputs[fmt::format("p.{}", i)] = parameters[i].detach();
    const auto state = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
    if (state == optimizer.state().end()) continue;
    outputs[fmt::format("momentum_buffer.{}", i)] =
        static_cast<const torch::optim::SGDParamState&>(*state->second).momentum_buffer();
  }
  return outputs;
}

Tensors clip(const Tensors& inputs, double max_norm) {
  std::vector<at::Tensor> parameters;
  Tensors outputs;
  for (const auto& [name, grad] : inputs) {
    parameters.push_back(at::empty_like(grad).requires_grad_());
    parameters.back().mutable_grad() = grad;
    outputs[name] = grad;
  }
  outputs["norm"] = at::scalar_tensor(clip_grad_norm_(parameters, max_norm), at::kDouble);
  return outputs;
}

/// The average after every step: a.STEP.N. In the middle its state goes to a new one.
Tensors ema(const Tensors& inputs, double decay) {
  torch::nn::Module module;
  for (size_t i = 0; inputs.contains(fmt::format("v.0.{}", i)); ++i) {
    module.register_parameter(fmt::format("p{}", i), at::zeros_like(inputs.at(fmt::format("v.0.{}", i))));
  }
  ExponentialMovingAverage before(module, decay), after(module, decay);
  ExponentialMovingAverage* average = &before;
  Tensors outputs;
  for (int step = 0; inputs.contains(fmt::format("v.{}.0", step)); ++step) {
    const auto parameters = module.parameters();
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].copy_(inputs.at(fmt::format("v.{}.{}", step, i)));
    }
    average->update();
    {
      const auto averaged = average->use();
      for (size_t i = 0; i < parameters.size(); ++i) {
        outputs[fmt::format("a.{}.{}", step, i)] = parameters[i].detach().clone();
      }
    }
    if (step == 3) {
      after.load_state_dict(before.state_dict());
      average = &after;
    }
  }
  return outputs;
}

/// Two groups, the second with a tenth of the first's learning rate.
torch::optim::SGD two_groups(double lr) {
  const auto group = [](double rate) {
    return torch::optim::OptimizerParamGroup({at::zeros({1}).requires_grad_()},
                                             std::make_unique<torch::optim::SGDOptions>(rate));
  };
  return torch::optim::SGD({group(lr), group(lr / 10)}, torch::optim::SGDOptions(lr));
}

void print_rates(const std::vector<double>& rates) {
  for (const double rate : rates) std::cout << fmt::format("{:.17g} ", rate);
}

/// In the middle the scheduler's state goes to a new one over a new optimizer.
template <class Scheduler, class Options, class Step>
void print_steps(double lr, const Options& options, int64_t steps, const Step& step) {
  torch::optim::SGD first = two_groups(lr), second = two_groups(lr);
  Scheduler before(first, options), after(second, options);
  Scheduler* scheduler = &before;
  for (int64_t i = 0; i < steps; ++i) {
    print_rates(scheduler->get_last_lr());
    step(*scheduler);
    if (i != steps / 2) continue;
    after.load_state_dict({.scalars = StateDict::scalars_from_json(before.state_dict().scalars_to_json())});
    scheduler = &after;
  }
  print_rates(scheduler->get_last_lr());
  std::cout << '\n';
}

void print_schedules() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string type, kwargs;
    LRScheduleOptions options;
    double lr = 0;
    words >> type >> options.num_warmup_steps >> options.num_training_steps >> lr;
    std::getline(words >> std::ws, kwargs);
    options.type = scheduler_type(type);
    read_lr_scheduler_kwargs(kwargs, options);
    print_steps<LRScheduler>(lr, options, options.num_training_steps + 2,
                             [](auto& scheduler) { scheduler.step(); });
  }
}

/// Lines of "LR MODE FACTOR PATIENCE THRESHOLD THRESHOLD_MODE COOLDOWN MIN_LR METRIC..."
void print_plateaus() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    ReduceLROnPlateauOptions options;
    double lr = 0;
    std::string mode, threshold_mode;
    words >> lr >> mode >> options.factor >> options.patience >> options.threshold >> threshold_mode >>
        options.cooldown >> options.min_lr;
    using Options = ReduceLROnPlateauOptions;
    options.mode = mode == "max" ? Options::Mode::max : Options::Mode::min;
    options.threshold_mode =
        threshold_mode == "abs" ? Options::ThresholdMode::abs : Options::ThresholdMode::rel;
    std::vector<double> metrics;
    for (double metric = 0; words >> metric;) metrics.push_back(metric);
    size_t next = 0;
    print_steps<ReduceLROnPlateau>(lr, options, static_cast<int64_t>(metrics.size()),
                                   [&](auto& scheduler) { scheduler.step(metrics[next++]); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("optim_runner", [&] {
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "schedule" || mode == "plateau") {
      mode == "schedule" ? print_schedules() : print_plateaus();
      return 0;
    }
    if (argc != 5) throw ValueError("usage: optim_runner adamw|sgd|ema|clip INPUTS OUTPUTS ARGUMENT");
    const Tensors inputs = checkpoint::load_safetensors(argv[2]).tensors;
    checkpoint::save_safetensors(argv[3], mode == "adamw" ? adamw(inputs, std::stoi(argv[4]) != 0)
                                          : mode == "sgd" ? sgd(inputs, argv[4])
                                          : mode == "ema" ? ema(inputs, std::stod(argv[4]))
                                                          : clip(inputs, std::stod(argv[4])));
    return 0;
  });
}
