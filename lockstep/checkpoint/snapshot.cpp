#include "lockstep/checkpoint/snapshot.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/mutex.h"
#include "lockstep/checkpoint/module_file.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kTensorsSuffix = ".safetensors";
constexpr size_t kHugePage = 2 << 20;

/// Which tensors, by name, go into each file: one after the other, as transformers divides them. One that is
/// larger than the limit has a file of its own.
std::vector<std::vector<std::string>> split_into_shards(const std::map<std::string, at::Tensor>& tensors,
                                                        uint64_t limit) {
  std::vector<std::vector<std::string>> shards;
  std::vector<std::string> open;
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.nbytes() > limit) {
      shards.push_back({name});
      continue;
    }
    if (!open.empty() && bytes + tensor.nbytes() > limit) {
      shards.push_back(std::move(open));
      open.clear();
      bytes = 0;
    }
    open.push_back(name);
    bytes += tensor.nbytes();
  }
  if (!open.empty()) shards.push_back(std::move(open));
  if (shards.empty()) shards.emplace_back();
  return shards;
}

struct Copy {
  char* to;
  const char* from;
  size_t bytes;
};

// In pieces of similar size, so that all threads have work until the end.
void copy_all(const std::vector<Copy>& copies) {
  constexpr size_t piece = 1 << 20;
  std::vector<Copy> pieces;
  for (const auto& copy : copies) {
    for (size_t at = 0; at < copy.bytes; at += piece) {
      pieces.push_back({copy.to + at, copy.from + at, std::min(piece, copy.bytes - at)});
    }
  }
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Copy& each = pieces[static_cast<size_t>(i)];
      std::memcpy(each.to, each.from, each.bytes);
    }
  });
}

void check_file_name(const std::string& name) {
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos || name == "manifest.json") {
    throw ValueError(
        fmt::format("a checkpoint cannot have a file named {:?}: expected a name without "
                    "directories, not hidden, and not manifest.json",
                    name));
  }
}

}  // namespace

void SnapshotMemory::Free::operator()(char* memory) const { std::free(memory); }

struct SnapshotMemory::State {
  base::Mutex mutex;
  std::vector<Block> blocks LOCKSTEP_GUARDED_BY(mutex);
};

SnapshotMemory::SnapshotMemory() : state_(std::make_unique<State>()) {}
SnapshotMemory::~SnapshotMemory() = default;

SnapshotMemory::Block SnapshotMemory::take(size_t bytes) {
  if (bytes == 0) return {};
  {
    const base::LockGuard lock(state_->mutex);
    auto& blocks = state_->blocks;
    const auto found = std::find_if(blocks.begin(), blocks.end(), [&](const Block& block) {
      return block.bytes >= bytes && block.bytes - bytes <= bytes / 8 + 4096;
    });
    if (found != blocks.end()) {
      Block block = std::move(*found);
      blocks.erase(found);
      return block;
    }
  }
  // Whole huge pages where that wastes little: they are there sooner, and copied to faster.
  const size_t alignment = bytes >= 8 * kHugePage ? kHugePage : 4096;
  const size_t whole = (bytes + alignment - 1) / alignment * alignment;
  auto* const memory = static_cast<char*>(std::aligned_alloc(alignment, whole));
  if (!memory) throw std::bad_alloc();
  if (alignment == kHugePage) ::madvise(memory, whole, MADV_HUGEPAGE);
  return {std::unique_ptr<char, Free>(memory), whole};
}

void SnapshotMemory::give_back(Block block) {
  if (!block.memory) return;
  const base::LockGuard lock(state_->mutex);
  state_->blocks.push_back(std::move(block));
}

void SnapshotMemory::trim() {
  const base::LockGuard lock(state_->mutex);
  state_->blocks.clear();
}

Snapshot::Snapshot(SnapshotOptions options) : options_(std::move(options)) {
  if (!options_.memory) options_.memory = std::make_shared<SnapshotMemory>();
}
Snapshot::~Snapshot() {
  for (auto& file : files_) options_.memory->give_back(std::move(file.data));
}
// The other one can be used again: it needs its memory.
Snapshot::Snapshot(Snapshot&& other) noexcept
    : options_(other.options_),  // NOLINT(performance-move-constructor-init)
      files_(std::exchange(other.files_, {})) {}
Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  std::swap(options_, other.options_);
  std::swap(files_, other.files_);
  return *this;
}

void Snapshot::add(File file) {
  check_file_name(file.name);
  const bool is_there =
      std::any_of(files_.begin(), files_.end(), [&](const auto& other) { return other.name == file.name; });
  if (is_there)
    throw ValueError(fmt::format("a checkpoint has one file named {}; it was added before", file.name));
  files_.push_back(std::move(file));
}

void Snapshot::add_text(const std::string& file, std::string content) {
  add({.name = file, .head = std::move(content)});
}

void Snapshot::add_tensors(const std::string& file, const std::map<std::string, at::Tensor>& tensors,
                           std::map<std::string, std::string> metadata) {
  if (!file.ends_with(kTensorsSuffix)) {
    throw ValueError(fmt::format("the file of tensors {:?} must end with {}", file, kTensorsSuffix));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : tensors) check_can_be_saved(name, tensor);
  const auto shards = split_into_shards(tensors, options_.max_shard_bytes);
  const std::string stem = file.substr(0, file.size() - kTensorsSuffix.size());
  nlohmann::json weight_map = nlohmann::json::object();
  std::vector<Copy> copies;
  for (size_t i = 0; i < shards.size(); ++i) {
    std::map<std::string, at::Tensor> part;
    for (const auto& name : shards[i]) part.emplace(name, tensors.at(name));
    const std::string name =
        shards.size() == 1 ? file
                           : fmt::format("{}-{:05d}-of-{:05d}{}", stem, i + 1, shards.size(), kTensorsSuffix);
    for (const auto& tensor : shards[i]) weight_map[tensor] = name;
    std::vector<SafetensorsEntry> entries = safetensors_entries(part);
    File added{.name = name, .head = safetensors_head(entries, metadata)};
    added.data_bytes = entries.empty() ? 0 : entries.back().end;
    added.data = options_.memory->take(added.data_bytes);
    for (const auto& entry : entries) {
      const at::Tensor& from = part.at(entry.name);
      char* const to = added.data.memory.get() + entry.begin;
      if (from.numel() == 0) continue;
      if (from.is_cpu() && from.is_contiguous() && !from.is_neg() && !from.is_conj()) {
        copies.push_back({to, static_cast<const char*>(from.const_data_ptr()), from.nbytes()});
      } else {
        at::from_blob(to, from.sizes(), at::TensorOptions().dtype(from.scalar_type())).copy_(from);
      }
    }
    add(std::move(added));
  }
  copy_all(copies);
  if (shards.size() == 1) return;
  int64_t parameters = 0;
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    parameters += tensor.numel();
    bytes += tensor.nbytes();
  }
  const nlohmann::json index = {{"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
                                {"weight_map", std::move(weight_map)}};
  add_text(file + ".index.json", dump_json(index, {.indent = 2}) + "\n");
}

void Snapshot::add_state(const std::string& stem, const StateDict& state) {
  add_tensors(stem + std::string(kTensorsSuffix), state.tensors,
              {{"format", "pt"}, {"scalars", state.scalars_to_json()}});
}

void Snapshot::add_module(const std::string& stem, const torch::nn::Module& module) {
  const auto [tensors, metadata] = module_tensors(module);
  add_tensors(stem + std::string(kTensorsSuffix), tensors, metadata);
}

uint64_t Snapshot::bytes() const {
  uint64_t sum = 0;
  for (const auto& file : files_) sum += file.head.size() + file.data_bytes;
  return sum;
}

}  // namespace lockstep::checkpoint
