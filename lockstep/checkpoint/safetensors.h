// safetensors files: tensors by name, with checks that refuse anything malformed before memory is touched.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep::checkpoint {

/// What load_safetensors() returns.
struct SafetensorsFile {
  std::map<std::string, at::Tensor> tensors;    ///< CPU, contiguous, own memory
  std::map<std::string, std::string> metadata;  ///< the header's `__metadata__`
};

/// An open file whose header is checked; reads single tensors. Methods are const and thread-safe.
class SafetensorsReader {
 public:
  /// Throws FileError naming the file and what is wrong: truncated, header too large, overlap, hole, unknown
  /// dtype.
  explicit SafetensorsReader(const std::filesystem::path& path);

  /// Name, dtype and shape of every tensor, in the order of their data.
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  /// The header's `__metadata__`; empty without one.
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  /// The tensor of `entry`: CPU, contiguous, own memory. Throws FileError.
  at::Tensor read(const SafetensorsEntry& entry) const;

  /// Reads `entry` into `destination`, which has its shape; another dtype or device is converted. Straight
  /// into its memory where that is possible. Throws FileError.
  void read_into(const SafetensorsEntry& entry, at::Tensor& destination) const;

  /// All tensors, in a private mapping of the file: read from it when they are touched; a write to one changes
  /// neither the file nor what others see. The mapping lives as long as one of them. Throws FileError.
  std::map<std::string, at::Tensor> map() const;

 private:
  void read_bytes(void* destination, uint64_t bytes, uint64_t offset, const std::string& what) const;

  std::string file_;
  UniqueFd fd_;
  uint64_t file_bytes_ = 0, data_start_ = 0;
  SafetensorsHeader header_;
};

/// The format's word for the tensor's dtype: F32, BF16, I64, ... Throws ValueError where it has none.
std::string dtype_of(const at::Tensor& tensor);

/// Throws ValueError where a safetensors file cannot hold `tensor`.
void check_can_be_saved(const std::string& name, const at::Tensor& tensor);

/// The entries of a file of `tensors`, in the order of their data; the offsets are safetensors_head()'s to fill
/// in. Throws ValueError as check_can_be_saved() does.
std::vector<SafetensorsEntry> safetensors_entries(const std::map<std::string, at::Tensor>& tensors);
/// What stands before the data: the header with its length. Fills in the offsets of `entries`.
std::string safetensors_head(std::vector<SafetensorsEntry>& entries,
                             const std::map<std::string, std::string>& metadata);

/// All tensors of `path`. Throws FileError as SafetensorsReader does.
SafetensorsFile load_safetensors(const std::filesystem::path& path);

/// Writes atomically, tensors by dtype size descending then name, as safetensors' own writers do, tensor by
/// tensor without a second copy of the whole. Throws FileError; ValueError for a tensor that the format
/// cannot hold.
void save_safetensors(const std::filesystem::path& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace lockstep::checkpoint
