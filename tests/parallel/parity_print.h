// What programs that a Python test compares with start from, and how they print what came out.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/parallel/ddp_models.h"

namespace lockstep::testing {

// What parity_main.cpp runs.
void parity();
void hook_parity();
void resnet18_parity();

/// By sorted name: the order of registration differs from Python's.
inline void fill_by_name(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  auto named = module.named_parameters();
  std::vector<std::string> names = named.keys();
  std::sort(names.begin(), names.end());
  // What a rank starts with must not matter: rank 0's parameters win.
  double phase = 100 * world().rank();
  for (const std::string& name : names) named[name].copy_(wave(named[name].sizes(), phase += 1));
}

inline void print_tensor(const std::string& run, const std::string& name, const at::Tensor& tensor) {
  if (world().rank() != 0) return;
  const at::Tensor values = tensor.detach().to(at::kDouble).contiguous();
  std::string line = run + " " + name;
  char number[32];
  for (int64_t i = 0; i < values.numel(); ++i) {
    std::snprintf(number, sizeof number, " %.9g", values.data_ptr<double>()[i]);
    line += number;
  }
  std::printf("%s\n", line.c_str());
}

inline void print_module(const std::string& run, const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) print_tensor(run, item.key(), item.value());
  for (const auto& item : module.named_buffers()) print_tensor(run, item.key(), item.value());
}

}  // namespace lockstep::testing
