// Files that Python's torch.load(weights_only=True) reads, as torch.save() writes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// Writes one object of None, bool, int, float, str, lists, tuples, dicts and tensors, from its beginning to its end. In a
/// dict, every second thing that is added is a value:
///
///     TorchFileWriter writer;
///     writer.begin_dict();
///     writer.add("lr");
///     writer.add(0.1);
///     writer.end_dict();
///     writer.save("optimizer.pt");
///
/// One thread at a time.
class TorchFileWriter {
 public:
  TorchFileWriter();
  void add_none();
  void add(bool value);
  void add(int64_t value);
  void add(double value);
  void add(std::string_view text);  ///< UTF-8
  void add(const char* text) { add(std::string_view(text)); }
  /// float32 or float64; it is written by save(), as it is then. Throws ValueError for another dtype.
  void add(const at::Tensor& tensor);
  void begin_dict();
  void end_dict();
  void begin_list();
  void end_list();
  void begin_tuple();
  void end_tuple();

  /// Replaces the file atomically. Throws FileError. Blocks.
  void save(const std::filesystem::path& path);

 private:
  void append_integer(int64_t value);
  std::string pickle_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace lockstep::checkpoint
