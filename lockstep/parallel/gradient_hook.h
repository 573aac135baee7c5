// What the reducer attaches to the accumulation of each parameter's gradient.
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <utility>

namespace lockstep {

class GradientHook : public torch::autograd::FunctionPostHook {
 public:
  /// `arrived` is called each time the gradient has been accumulated, `home` by gradient_home().
  GradientHook(std::function<void()> arrived, std::function<at::Tensor(at::ScalarType)> home)
      : arrived_(std::move(arrived)), home_(std::move(home)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    arrived_();
    return outputs;
  }
  at::Tensor home(at::ScalarType dtype) const { return home_(dtype); }

 private:
  std::function<void()> arrived_;
  std::function<at::Tensor(at::ScalarType)> home_;
};

}  // namespace lockstep
