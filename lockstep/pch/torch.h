// The one precompiled header. Each header here costs every source that sees a tensor (g++ instantiates anew
// what a precompiled header left pending), so it holds what most of them need; an nn module more in the one
// source that uses it costs 0.2 to 0.9 s there (docs/development/build.md).
#pragma once

#include <filesystem>
#include <ranges>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <fmt/format.h>  // the one inside LibTorch
