// One rank's files of a checkpoint, copied into memory, so that training goes on while they are written.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/state/state_dict.h"

namespace torch::nn {
class Module;
}

namespace lockstep::checkpoint {

/// Memory that snapshots take and give back: the second one is copied into pages that are there already.
/// Thread-safe.
class SnapshotMemory {
 public:
  /// Frees the memory of a Block.
  struct Free {
    void operator()(char* memory) const;  ///< std::free
  };
  /// Memory from take(); a dropped block is freed.
  struct Block {
    std::unique_ptr<char, Free> memory{};  ///< null for 0 bytes
    size_t bytes = 0;                      ///< at least what was asked for
  };

  SnapshotMemory();
  ~SnapshotMemory();
  /// Memory for `bytes` bytes, uninitialized: a block that was given back, of about that size, or a new one.
  /// Throws std::bad_alloc.
  Block take(size_t bytes);
  /// Keeps the block for a later take(), until trim() or the destructor.
  void give_back(Block block);
  /// Frees what nobody has taken.
  void trim();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Where a Snapshot takes its memory, and how it divides large files.
struct SnapshotOptions {
  /// A safetensors file with more bytes of tensors than that becomes several and an index, as transformers
  /// writes them: model-00001-of-00002.safetensors, ..., model.safetensors.index.json.
  uint64_t max_shard_bytes = 5'000'000'000;
  std::shared_ptr<SnapshotMemory> memory{};  ///< default: its own
};

/// Files for a Writer. File names have no directories; adding one that is there already is a ValueError. The
/// tensors are copied when they are added, by LibTorch's threads (at::set_num_threads); they may change
/// afterwards. One thread at a time.
class Snapshot {
 public:
  /// Without files.
  explicit Snapshot(SnapshotOptions options = {});
  /// Gives the memory back to SnapshotOptions::memory.
  ~Snapshot();
  /// `other` has no files afterwards.
  Snapshot(Snapshot&& other) noexcept;
  /// Exchanges files and options with `other`.
  Snapshot& operator=(Snapshot&& other) noexcept;

  /// `content` as the file `file`.
  void add_text(const std::string& file, std::string content);
  /// `file` ends with ".safetensors". Tensors of other devices and layouts of memory are brought to the CPU in
  /// row-major order. Throws ValueError for a tensor that the format cannot hold.
  void add_tensors(const std::string& file, const std::map<std::string, at::Tensor>& tensors,
                   std::map<std::string, std::string> metadata = {{"format", "pt"}});
  /// `state` as `stem`.safetensors, with its scalars as JSON in the metadata, under "scalars".
  void add_state(const std::string& stem, const StateDict& state);
  /// The parameters and buffers of `module` as `stem`.safetensors, as save_module() writes them.
  void add_module(const std::string& stem, const torch::nn::Module& module);

  /// Counts tensors and texts together.
  uint64_t bytes() const;

  /// A file of the snapshot: `head`, and behind it `data`.
  struct File {
    std::string name;              ///< without directories
    std::string head;              ///< a text, or a safetensors file's header
    SnapshotMemory::Block data{};  ///< the tensors' bytes; empty for a text
    size_t data_bytes = 0;         ///< how many of data's bytes belong to the file
  };
  /// In the order in which they were added.
  const std::vector<File>& files() const { return files_; }

 private:
  void add(File file);
  SnapshotOptions options_;
  std::vector<File> files_{};
};

}  // namespace lockstep::checkpoint
