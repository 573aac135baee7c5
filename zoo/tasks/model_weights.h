// Weights in the files of several libraries.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

namespace torch::nn {
class Module;
}

namespace lockstep::tasks {

/// Tensors by name, of a .safetensors file or one of torch.save() (.pth, .pt, .bin). Where all names begin with "module.", as
/// DistributedDataParallel's do in Python, they lose it. Throws FileError.
std::map<std::string, at::Tensor> read_weights(const std::filesystem::path& file);

/// Copies `weights` into the parameters and buffers of `module`, converting dtypes. num_batches_tracked may be missing. Throws
/// ValueError that begins with `source` and names what is missing, unexpected or of another shape; then the module is as before.
void load_weights(torch::nn::Module& module, const std::map<std::string, at::Tensor>& weights,
                  const std::string& source);

/// Writes parameters and buffers as Python's torch.save(DistributedDataParallel(model).state_dict(), file) does, under names
/// that begin with "module.", or for a name that ends in .safetensors as save_module() does. num_batches_tracked, which PyTorch
/// fills in, is left out of the former. Throws FileError.
void write_weights(const torch::nn::Module& module, const std::filesystem::path& file);

/// Throws FileError where write_weights() could not write `file`, for its name or its directory; changes nothing.
void check_can_write(const std::filesystem::path& file);

}  // namespace lockstep::tasks
