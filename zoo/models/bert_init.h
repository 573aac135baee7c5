// Fresh values for BERT's parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "lockstep/zoo/models/bert.h"

namespace lockstep::models {

/// Fills `parameter` as Hugging Face initializes the one of that name: normal(0, initializer_range), biases
/// 0, LayerNorm weights 1, the padding id's embedding 0. Random numbers come from torch's default generator.
void initialize_parameter(const std::string& name, at::Tensor& parameter, const BertConfig& config);

}  // namespace lockstep::models
