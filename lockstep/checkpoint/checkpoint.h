// Reading checkpoints that a Writer has written.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/module_file.h"
#include "lockstep/state/state_dict.h"

namespace lockstep::checkpoint {

/// A complete checkpoint. A value; its methods are const and thread-safe and throw FileError.
class Checkpoint {
 public:
  /// For open() and latest(), which have verified it.
  Checkpoint(std::filesystem::path path, Manifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  /// The number in the directory's name: optimizer steps where a Trainer has saved it.
  int64_t step() const { return manifest_.step; }
  /// The directory, as open() was given it.
  const std::filesystem::path& path() const { return path_; }
  std::string name() const { return path_.filename().string(); }  ///< "checkpoint-100"
  int world_size() const { return manifest_.world_size; }         ///< ranks that have written
  /// Names, sizes and hashes of the files, from manifest.json.
  const Manifest& manifest() const { return manifest_; }

  /// Whether the checkpoint has a file of this name, such as "trainer_state.json".
  bool has(const std::string& file) const { return manifest_.files.contains(file); }
  /// Whether tensors or a state were saved under that name, in one file or several.
  bool has_tensors(const std::string& stem) const;

  /// The content of a text file of the checkpoint. Throws FileError where it has no such file. Blocks.
  std::string read_text(const std::string& file) const;
  /// What read_tensors() returns.
  struct Tensors {
    std::map<std::string, at::Tensor> tensors{};    ///< by name, on the CPU
    std::map<std::string, std::string> metadata{};  ///< the files' `__metadata__`
  };
  /// All tensors of `stem`.safetensors, or of its shards. They lie in private mappings of the files, which
  /// are read when a tensor is touched: a write to one changes neither file nor checkpoint.
  Tensors read_tensors(const std::string& stem) const;
  /// Reads what Snapshot::add_module() has saved into the memory of `module`, as lockstep::load_module() does,
  /// with its errors.
  LoadResult load_module(const std::string& stem, torch::nn::Module& module, LoadOptions options = {}) const;
  /// What Snapshot::add_state() was given; its tensors as read_tensors() gives them.
  StateDict read_state(const std::string& stem) const;

 private:
  std::vector<std::filesystem::path> files_of(const std::string& stem) const;
  std::filesystem::path path_;
  Manifest manifest_;
};

/// How open() reads a checkpoint.
struct OpenOptions {
  /// Reads every file and compares its hash. Where one rank has done so, the others need not.
  bool verify = true;
};

/// The checkpoint in the directory `path`. Throws FileError that names the file and what is wrong with it.
/// Blocks.
Checkpoint open(const std::filesystem::path& path, OpenOptions options = {});

/// The newest complete checkpoint in `folder`, verified, whether or not the file `latest` names it; nullopt:
/// there is none. `on_refused` is called for each newer one, with what is wrong with it, and for a `latest`
/// that names none of these; default: a warning in the log. Blocks.
std::optional<Checkpoint> latest(const std::filesystem::path& folder, OnRefused on_refused = {});

}  // namespace lockstep::checkpoint
