// Gradients of one module beside those of another.
#pragma once

#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <vector>

namespace lockstep::testing {

inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters()) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  }
  return gradients;
}

inline void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << i;
    if (!found[i].defined()) continue;
    EXPECT_LE((found[i] - expected[i]).abs().max().item<double>(), 1e-6) << i;
  }
}

}  // namespace lockstep::testing
