// Checkpoints of a loop of one's own: save(), load(), and latest() (checkpoint.h).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <concepts>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/files.h"
#include "lockstep/checkpoint/run_record.h"
#include "lockstep/checkpoint/snapshot.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/state/stateful.h"

namespace lockstep::checkpoint {

/// Which ranks write a Part.
enum class SavedBy {
  first_rank,  ///< what is equal on all ranks; all load it
  each_rank,   ///< what differs between them; needs as many ranks when it is loaded
};

/// Something with a name to be saved and loaded; it must live as long as the Part. Its file is
/// `name`.safetensors. Implicitly made of a pair:
///
///     lockstep::checkpoint::save("run/checkpoint-100", {{"model", model}, {"optimizer", optimizer}});
class Part {
 public:
  /// Parameters and buffers under the module's names, as save_module() writes them.
  Part(std::string name, torch::nn::Module& module);
  /// Takes a module holder such as torch::nn::Sequential instead of a module.
  template <class M>
  Part(std::string name, const torch::nn::ModuleHolder<M>& module)
      : Part(std::move(name), static_cast<torch::nn::Module&>(*module.ptr())) {}
  /// Takes a std::shared_ptr to a module instead of a module.
  template <std::derived_from<torch::nn::Module> M>
  Part(std::string name, const std::shared_ptr<M>& module)
      : Part(std::move(name), static_cast<torch::nn::Module&>(*module)) {}
  /// As optimizer_state_dict() knows it; of a divided one, each rank saves its part, and any number of ranks
  /// can load them.
  Part(std::string name, torch::optim::Optimizer& optimizer);
  /// Anything with state_dict() and load_state_dict(), such as an LRScheduler, a sampler or Counters.
  template <Stateful T>
  Part(std::string name, T& thing, SavedBy saved_by = SavedBy::first_rank)
      : Part(
            std::move(name), saved_by, [&thing] { return thing.state_dict(); },
            [&thing](const StateDict& state) { thing.load_state_dict(state); }) {}

  /// The name in the checkpoint; the file's, without .safetensors.
  const std::string& name() const { return name_; }
  /// Adds what this rank saves of it.
  void add_to(Snapshot& snapshot, int rank, int world_size) const;
  /// Throws FileError for what the checkpoint lacks, and the errors of whom it belongs to.
  void load_from(const Checkpoint& checkpoint, int rank, int world_size) const;

 private:
  Part(std::string name, SavedBy saved_by, std::function<StateDict()> save,
       std::function<void(const StateDict&)> load);
  std::string name_;
  std::function<void(Snapshot&, int rank, int world_size)> add_;
  std::function<void(const Checkpoint&, int rank, int world_size)> load_;
};

/// How save() writes.
struct SaveOptions {
  /// The ranks that save together; default: the group that lockstep::init() made, else this process alone.
  std::optional<ProcessGroup> process_group{};
  int save_total_limit = 0;      ///< WriterOptions::save_total_limit
  std::set<std::string> kept{};  ///< names that the limit spares: "checkpoint-100"
  RunRecord record{};            ///< what the weights mean, for load(); empty: the checkpoint has none
  uint64_t max_shard_bytes = 5'000'000'000;                      ///< SnapshotOptions::max_shard_bytes
  std::shared_ptr<Files> files = posix_files();                  ///< the file system; tests make it fail
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  ///< of writing, and of publishing
};

/// Saves `parts` as the checkpoint `directory`, whose name is `checkpoint-<step>`: whole or not at all (writer.h).
/// When it returns, the checkpoint survives a crash. Called by all ranks of the group, with the same
/// arguments and a folder that they share; blocks. Throws FileError on all ranks when one cannot write; ValueError
/// for another name. Old checkpoints that cannot be removed are a warning in the log.
void save(const std::filesystem::path& directory, const std::vector<Part>& parts, SaveOptions options = {});

/// Finds out before a training whether all ranks of `group` see one `folder`, which is made where it does not
/// exist. Throws FileError on all ranks that names those that do not see what rank 0 has written. Called by all
/// ranks; blocks. `is_tried`: this process takes the place of one that has tried it, and touches no file.
void check_shared_folder(const std::filesystem::path& folder, const ProcessGroup& group,
                         bool is_tried = false);

/// The record that save() was given; empty if it was given none. Throws FileError.
RunRecord read_record(const Checkpoint& checkpoint);

/// Compares `record` with the checkpoint's, for a run that goes on from it, before the program writes anything. Throws ValueError
/// with every old and new value unless `resume_anyway` allows them; then `record` notes what differed, for the next save().
/// It takes in the history of the checkpoint's. A checkpoint without a record is a warning in the log. Not collective: each
/// rank calls it.
void check_record(const Checkpoint& checkpoint, RunRecord& record,
                  const std::set<RecordKind>& resume_anyway = {});

/// How load() reads.
struct LoadPartsOptions {
  std::optional<ProcessGroup> process_group{};  ///< as SaveOptions::process_group
  RunRecord* record = nullptr;                  ///< check_record() is called with it first; null: it is not
  std::set<RecordKind> resume_anyway{};         ///< of check_record()
};

/// Loads every one of `parts`. Not collective: each rank calls it. Throws FileError for what the checkpoint
/// lacks, ValueError for what does not fit; then some parts may be loaded, but none if the record does not fit. Blocks.
void load(const Checkpoint& checkpoint, const std::vector<Part>& parts, LoadPartsOptions options = {});
/// Verifies `directory` first and then loads `parts` from it in the same way.
void load(const std::filesystem::path& directory, const std::vector<Part>& parts,
          LoadPartsOptions options = {});

}  // namespace lockstep::checkpoint
