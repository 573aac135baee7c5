// State dicts in the files of Python's torch.save(): model.pt, resnet.pth, pytorch_model.bin.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

struct TorchFile {
  /// On the CPU, with the strides that they were saved with. Those that shared memory share it here.
  std::map<std::string, at::Tensor> tensors{};
  std::vector<std::string> left_out{};  ///< entries that are no tensors: "epoch (int)"
};

struct LoadTorchFileOptions {
  /// Where the file is a dict of several things, the one that holds the tensors: "model_state_dict".
  std::string key{};
};

/// Reads what torch.save(module.state_dict(), path) has written (the zip format, PyTorch 1.6 and later, little-endian).
/// It reads plain data and executes nothing. Throws FileError that begins with the path for a file that is
/// damaged, and that names the class, function or opcode of one that holds more than tensors, numbers and texts in dicts,
/// lists and tuples; ValueError for a key that the file does not have. Needs memory for the whole file. Blocks.
TorchFile load_torch_file(const std::filesystem::path& path, const LoadTorchFileOptions& options = {});

}  // namespace lockstep::checkpoint
