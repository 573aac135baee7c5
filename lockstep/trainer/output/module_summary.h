// A module's parts and their sizes, as a table.
#pragma once

#include <torch/nn/module.h>

#include <string>

namespace lockstep {

/// A line for each of `module`'s own modules, with name, type and parameters, and a last one with the sums:
/// parameters, those that are trained, MB. Names of C++ types are shown as the module prints them.
std::string module_summary(const torch::nn::Module& module);

}  // namespace lockstep
