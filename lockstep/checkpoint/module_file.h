// The parameters and buffers of a module as a safetensors file, under the module's own names.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

namespace checkpoint {

/// Tensors by name, and the file's metadata.
using TensorsOfFile = std::pair<std::map<std::string, at::Tensor>, std::map<std::string, std::string>>;

/// What save_module() writes. The tensors share the module's memory.
TensorsOfFile module_tensors(const torch::nn::Module& module);
/// Returns what is written of `tensors`. Tensors that share all of their memory are written once.
TensorsOfFile tensors_once(const std::map<std::string, at::Tensor>& tensors);

}  // namespace checkpoint

/// Writes all parameters and buffers of `module` to `path`, under the names of named_parameters() and
/// named_buffers(). Python's safetensors.torch.load_model reads the file into a module with the same names. A
/// tensor with several names (tied weights) is written once, under the first name in alphabetical order; the
/// file's metadata say the others. A failure leaves the old file or none. Throws FileError, and ValueError for
/// a tensor that the format cannot hold; Error inside a forward or backward with mixed_precision. Blocks. On several ranks, one
/// of them calls it.
void save_module(const torch::nn::Module& module, const std::filesystem::path& path);

/// How load_module() treats names that do not match.
struct LoadOptions {
  bool strict = true;  ///< whether missing and unexpected tensors are an error
};

/// The names that did not match; both lists are empty after a strict load.
struct LoadResult {
  std::vector<std::string> missing;     ///< tensors of the module that the file lacks; they are as before
  std::vector<std::string> unexpected;  ///< tensors of the file that the module lacks
};

/// Copies the tensors of the safetensors file `path` into the parameters and buffers of `module`, which keep
/// their memory and devices. Any name of a tensor with several will do. Throws FileError for a file that cannot
/// be read; ValueError that names file and tensors for another shape or dtype and, when strict, for missing and
/// unexpected ones, all in one error: then the module is as before. Blocks.
LoadResult load_module(torch::nn::Module& module, const std::filesystem::path& path,
                       LoadOptions options = {});
/// Loads a module in the same way from several files (shards), among which its tensors are divided.
LoadResult load_module(torch::nn::Module& module, const std::vector<std::filesystem::path>& paths,
                       LoadOptions options = {});

}  // namespace lockstep
