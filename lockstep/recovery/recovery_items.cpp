#include "lockstep/recovery/recovery_items.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/objects.h"
#include "lockstep/optim/fused_zero_optimizer.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/parallel/sync_module_states.h"
#include "lockstep/step/replica_hash.h"
#include "lockstep/step/replica_items.h"

namespace lockstep::detail {
namespace {

/// What is copied in every step.
constexpr size_t kMostKept = size_t{1} << 20;

size_t bytes_of(const StateDict& state) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : state.tensors) bytes += tensor.defined() ? tensor.nbytes() : 0;
  return bytes;
}

StateDict copy_state(StateDict state) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : state.tensors) {
    if (tensor.defined()) tensor = tensor.detach().clone();
  }
  return state;
}

uint64_t hash_of(const ReplicaItems& items) {
  uint64_t hash = 0;
  for (const ReplicaItem& item : items.all()) {
    hash = mix(hash, hash_of_item(item.name, item.description, hash_of_contents(item.contents)));
  }
  return hash;
}

uint64_t hash_of(const StateDict& state) {
  uint64_t hash = hash_of_item("scalars", state.scalars_to_json(), 0);
  for (const auto& [name, tensor] : state.tensors) {
    const std::string kind = tensor.defined() ? fmt::format("{} {}", c10::toString(tensor.scalar_type()),
                                                            fmt::join(tensor.sizes(), ","))
                                              : "undefined";
    hash = mix(hash, hash_of_item(name, kind, hash_of_contents(tensor)));
  }
  return hash;
}

/// Rank `donor`'s.
StateDict broadcast_state(const ProcessGroup& group, const StateDict& own, int donor) {
  nlohmann::json described;
  if (group.rank() == donor) {
    described["scalars"] = own.scalars_to_json();
    described["tensors"] = nlohmann::json::array();
    for (const auto& [name, tensor] : own.tensors) {
      described["tensors"].push_back(
          {name, static_cast<int>(tensor.scalar_type()), std::vector<int64_t>(tensor.sizes().vec())});
    }
  }
  described = broadcast_object(group, described, {.src = donor});
  StateDict state;
  state.scalars = StateDict::scalars_from_json(described.at("scalars").get<std::string>());
  const at::NoGradGuard no_grad;
  for (const auto& tensor : described.at("tensors")) {
    const auto name = tensor.at(0).get<std::string>();
    const auto dtype = static_cast<at::ScalarType>(tensor.at(1).get<int>());
    at::Tensor values = group.rank() == donor
                            ? own.tensors.at(name).detach().contiguous()
                            : at::empty(tensor.at(2).get<std::vector<int64_t>>(), at::TensorOptions(dtype));
    group.broadcast(values, {.src = donor});
    state.tensors[name] = std::move(values);
  }
  return state;
}

}  // namespace

RecoveryItems::RecoveryItems(std::vector<RecoveryItem> items)
    : items_(std::move(items)), kept_(items_.size()) {
  std::set<std::string> names;
  std::set<const void*> things;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const RecoveryItem& item : items_) {
    if (!names.insert(item.name).second) {
      throw ValueError(
          fmt::format("Recovery: two things are called \"{}\"; give each a name of its own", item.name));
    }
    const void* const thing = item.module != nullptr ? static_cast<const void*>(item.module) : item.optimizer;
    if (thing != nullptr && !things.insert(thing).second) {
      throw ValueError(
          fmt::format("Recovery: \"{}\" is named a second time; name each thing once", item.name));
    }
    if (item.optimizer != nullptr) optimizers_.push_back(item.optimizer);
    if (item.module == nullptr) continue;
    for (const at::Tensor& parameter : item.module->parameters()) {
      if (parameter.defined() && seen.insert(parameter.unsafeGetTensorImpl()).second)
        parameters_.push_back(parameter);
    }
  }
  probe_.emplace(parameters_, optimizers_);
}

RecoveryItems::~RecoveryItems() {
  if (own_) set_before_agreement({});
  if (notes_gradients_) set_after_backward({});
  if (!own_items_.empty()) set_after_averaging({});
  for (const auto& shard : shards_) shard->optimizer->call_after_update({});
}

void RecoveryItems::keep_own(shm::SetupLog& log, bool is_new) {
  if (probe_->needs_gradients()) {
    notes_gradients_ = true;
    set_after_backward([this] { probe_->note_gradients(); });
  }
  for (const RecoveryItem& item : items_) {
    auto* const optimizer = dynamic_cast<ShardedOptimizer*>(item.optimizer);
    if (optimizer == nullptr) continue;
    shards_.push_back(std::make_unique<Shard>(Shard{optimizer, ShardVault(log, shards_.size())}));
    Shard& shard = *shards_.back();
    if (!is_new) write(shard, 0);
    optimizer->call_after_update([this, &shard] { write(shard, steps_ + 1); });
  }
  for (const RecoveryItem& item : items_) {
    if (!item.is_own) continue;
    own_items_.push_back(
        std::make_unique<OwnItem>(OwnItem{&item, ShardVault(log, shards_.size() + own_items_.size())}));
  }
  if (!own_items_.empty()) {
    if (!is_new) write_own_items(0);
    set_after_averaging([this] { write_own_items(steps_ + 1); });
  }
  std::vector<at::Tensor> statistics = own_statistics();
  if (statistics.empty()) return;
  own_ = std::make_unique<OwnStatistics>(std::move(statistics), log, shards_.size() + own_items_.size());
  if (!is_new) own_->commit(0);
  set_before_agreement([this] { own_->keep(steps_ + 1); });
}

void RecoveryItems::end_step() {
  if (own_) own_->keep(steps_ + 1, /*is_end=*/true);
}

void RecoveryItems::commit(int64_t steps) {
  if (own_) own_->commit(steps);
}

void RecoveryItems::write(Shard& shard, int64_t steps) {
  StateDict state;
  state.add("optimizer", shard.optimizer->shard_state_dict());
  const auto weights = shard.optimizer->own_weights();
  for (size_t i = 0; i < weights.size(); ++i) state.tensors[fmt::format("weights.{}", i)] = weights[i];
  shard.vault.write(steps, state);
}

void RecoveryItems::write_own_items(int64_t steps) {
  for (const auto& own : own_items_) own->vault.write(steps, own->item->save());
}

/// Without those that are common to all.
std::vector<at::Tensor> RecoveryItems::own_statistics() const {
  std::unordered_set<const at::TensorImpl*> common;
  for_each_step_member([&](StepMember& member) {
    for (const at::Tensor& statistic : member.common_statistics())
      common.insert(statistic.unsafeGetTensorImpl());
  });
  std::vector<at::Tensor> own;
  for (const RecoveryItem& item : items_) {
    if (item.module == nullptr) continue;
    for (const at::Tensor& statistic : list_own_statistics(*item.module)) {
      if (common.insert(statistic.unsafeGetTensorImpl()).second) own.push_back(statistic);
    }
  }
  return own;
}

void RecoveryItems::go_to(int64_t steps, const ProcessGroup& group, int donor) {
  const at::NoGradGuard no_grad;
  const auto writable = make_writable();
  for (const auto& shard : shards_) {
    // Options change between an optimizer's steps, too.
    StateDict options;
    for (const auto& [name, value] : shard->optimizer->shard_state_dict().scalars) {
      if (name.starts_with("param_groups.")) options.scalars[name] = value;
    }
    options = broadcast_state(group, options, donor);
    const StateDict state = shard->vault.read(steps);
    StateDict part = state.part("optimizer");
    for (const auto& [name, value] : options.scalars) part.scalars[name] = value;
    shard->optimizer->load_shards({part});
    auto weights = shard->optimizer->own_weights();
    for (size_t i = 0; i < weights.size(); ++i)
      weights[i].copy_(state.tensors.at(fmt::format("weights.{}", i)));
    shard->optimizer->share_weights();
  }
}

std::string RecoveryItems::problem() const {
  std::unordered_set<const at::TensorImpl*> optimized;
  for (const RecoveryItem& item : items_) {
    if (item.optimizer != nullptr) {
      if (const auto* const sharded = dynamic_cast<const ShardedOptimizer*>(item.optimizer)) {
        // Weights and at most three tensors of their size, as AdamW with amsgrad has them from its first step on.
        constexpr size_t kTensors = 4;
        size_t bytes = 0;
        for (const at::Tensor& weight : sharded->own_weights()) bytes += kTensors * weight.nbytes();
        if (bytes > ShardVault::kMostBytes) {
          return fmt::format("a rank's part of {} may have {} bytes, and at most {} outlive the rank",
                             item.name, bytes, ShardVault::kMostBytes);
        }
      }
      try {
        optimizer_state_dict(*item.optimizer);
      } catch (const ValueError& error) {
        return fmt::format("{}: {}", item.name, error.what());
      }
      for (const auto& group : item.optimizer->param_groups()) {
        for (const at::Tensor& parameter : group.params()) optimized.insert(parameter.unsafeGetTensorImpl());
      }
    } else if (item.module != nullptr) {
      const auto own = list_own_statistics(*item.module);
      if (std::any_of(own.begin(), own.end(), [](const at::Tensor& statistic) {
            return !statistic.is_cpu() || !statistic.is_contiguous();
          })) {
        return fmt::format(
            "{} has running statistics of each rank's own batches that are not contiguous memory of the CPU",
            item.name);
      }
    } else if (item.is_own) {
      // Gradients, and matrices that make of them.
      constexpr size_t kTensors = 2;
      size_t bytes = 0;
      for (const at::Tensor& parameter : parameters_) bytes += kTensors * parameter.nbytes();
      if (bytes > ShardVault::kMostBytes) {
        return fmt::format("what a rank alone has of {} may have {} bytes, and at most {} outlive the rank",
                           item.name, bytes, ShardVault::kMostBytes);
      }
    } else if (const size_t bytes = item.keep ? 0 : bytes_of(item.save()); bytes > kMostKept) {
      return fmt::format("{} has a state of {} bytes, and at most {} are copied in every step", item.name,
                         bytes, kMostKept);
    }
  }
  for (const RecoveryItem& item : items_) {
    if (item.module == nullptr) continue;
    for (const auto& named : item.module->named_parameters()) {
      if (!named.value().requires_grad() || optimized.contains(named.value().unsafeGetTensorImpl())) continue;
      return fmt::format("parameter {} of {} is in no optimizer that Recovery was given", named.key(),
                         item.name);
    }
  }
  return {};
}

bool RecoveryItems::has_position() const {
  return std::any_of(items_.begin(), items_.end(),
                     [](const RecoveryItem& item) { return item.save != nullptr && item.member == nullptr; });
}

bool RecoveryItems::have_all(const std::vector<at::Tensor>& weights) const {
  return std::all_of(weights.begin(), weights.end(), [&](const at::Tensor& weight) {
    return std::any_of(parameters_.begin(), parameters_.end(),
                       [&](const at::Tensor& parameter) { return parameter.is_same(weight); });
  });
}

std::vector<std::string> RecoveryItems::names() const {
  std::vector<std::string> names;
  for (const RecoveryItem& item : items_) names.push_back(item.name);
  return names;
}

bool RecoveryItems::has(const StepMember& member) const {
  return std::any_of(items_.begin(), items_.end(),
                     [object = dynamic_cast<const void*>(&member)](const RecoveryItem& item) {
                       return item.member == object;
                     });
}

int64_t RecoveryItems::shown_steps(int64_t steps) const {
  for (const RecoveryItem& item : items_) {
    if (item.shown_steps) return item.shown_steps();
  }
  return steps;
}

void RecoveryItems::drop_gradients() const {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  for (torch::optim::Optimizer* const optimizer : optimizers_) optimizer->zero_grad();
}

void RecoveryItems::keep() {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].keep) {
      items_[i].keep();
    } else if (items_[i].save) {
      kept_[i].state = copy_state(items_[i].save());
    }
    if (items_[i].optimizer == nullptr) continue;
    kept_[i].options.clear();
    for (const auto& group : items_[i].optimizer->param_groups())
      kept_[i].options.push_back(group.options().clone());
  }
  probe_->keep();
}

void RecoveryItems::restore() {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].restore) {
      items_[i].restore();
    } else if (items_[i].load) {
      items_[i].load(kept_[i].state);
    }
    if (items_[i].optimizer == nullptr) continue;
    auto& groups = items_[i].optimizer->param_groups();
    for (size_t g = 0; g < std::min(groups.size(), kept_[i].options.size()); ++g)
      groups[g].set_options(kept_[i].options[g]->clone());
  }
}

std::vector<uint64_t> RecoveryItems::hashes() const {
  std::vector<uint64_t> hashes;
  for (const RecoveryItem& item : items_) {
    ReplicaItems items;
    if (item.module != nullptr) items.add_module(*item.module, {}, /*compare_buffers=*/true);
    const bool is_divided = dynamic_cast<const ShardedOptimizer*>(item.optimizer) != nullptr;
    if (item.optimizer != nullptr && !is_divided) items.add_optimizer(*item.optimizer);
    hashes.push_back(!item.is_alike ? 0 : item.save ? hash_of(item.save()) : hash_of(items));
  }
  return hashes;
}

/// Parameters that the ranks share may be protected.
std::vector<std::unique_ptr<FusedZeroCore::WritableParameters>> RecoveryItems::make_writable() const {
  std::vector<std::unique_ptr<FusedZeroCore::WritableParameters>> writable;
  for (const RecoveryItem& item : items_) {
    if (auto* const fused = dynamic_cast<FusedZeroCore*>(item.optimizer)) {
      // NOLINTNEXTLINE(cppcoreguidelines-owning-memory,modernize-make-unique): it can be neither copied nor moved
      writable.emplace_back(new FusedZeroCore::WritableParameters(fused->writable_parameters()));
    }
  }
  return writable;
}

void RecoveryItems::hand_over(int64_t steps, const ProcessGroup& group, int donor) {
  const auto writable = make_writable();
  for (const RecoveryItem& item : items_) {
    if (item.module != nullptr) {
      sync_module_states(*item.module, {.src = donor, .process_group = group});
    } else if (dynamic_cast<const ShardedOptimizer*>(item.optimizer) != nullptr) {
      continue;  // go_to()
    } else if (item.is_own) {
      continue;
    } else if (item.optimizer != nullptr) {
      broadcast_optimizer_state(*item.optimizer, {.src = donor, .process_group = group});
    } else {
      const StateDict state = broadcast_state(group, item.save(), donor);
      if (group.rank() != donor) item.load(state);
    }
  }
  for (const auto& own : own_items_) {
    // Ranks that have gone on alone may be ahead of one that died.
    const auto has = all_gather_object(group, nlohmann::json(own->vault.has(steps)));
    for (size_t r = 0; r < has.size(); ++r) {
      if (has[r] == has[static_cast<size_t>(donor)]) continue;
      throw Error(fmt::format(
          "Recovery: rank {} died in step {}, which others had ended, before its own part of {} was that of the step",
          r, steps, own->item->name));
    }
    own->item->load(own->vault.read(steps));
  }
  if (own_) own_->go_to(steps, group, donor);
}

void RecoveryItems::tell_healed() const {
  for (const RecoveryItem& item : items_) {
    if (item.healed) item.healed();
  }
}

}  // namespace lockstep::detail
