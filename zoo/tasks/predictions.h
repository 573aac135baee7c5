// The file of a classifier's predictions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::tasks {

/// Writes one JSON line a row of `logits`, [samples, labels], in order: {"index", "label", "logits"}. The
/// label is that of the greatest logit, the index that of `indices`, one a row, or without them the row from 0. Atomic.
/// Throws FileError.
void write_predictions(const std::filesystem::path& path, const at::Tensor& logits,
                       const std::vector<std::string>& labels, const std::vector<int64_t>& indices = {});

}  // namespace lockstep::tasks
