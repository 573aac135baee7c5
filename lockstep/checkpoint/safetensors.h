// safetensors files: tensors by name, with checks that refuse anything malformed before memory is touched.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace lockstep::checkpoint {

struct SafetensorsFile {
  std::map<std::string, at::Tensor> tensors;    ///< CPU, contiguous, own memory
  std::map<std::string, std::string> metadata;  ///< the header's __metadata__
};

/// Throws FileError naming the file and what is wrong: truncated, header too large, overlap, hole, unknown
/// dtype.
SafetensorsFile load_safetensors(const std::filesystem::path& path);

/// Writes atomically, tensors by dtype size descending then name, as safetensors' own writers do.
void save_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace lockstep::checkpoint
