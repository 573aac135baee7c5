#include "lockstep/recovery/recovery_items.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/objects.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/sync_batch_norm.h"
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

StateDict copy_of(StateDict state) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : state.tensors) {
    if (tensor.defined()) tensor = tensor.detach().clone();
  }
  return state;
}

uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x9E3779B97F4A7C15ULL + (hash >> 29U); }

/// Some elements of `weight`, spread over all of it, and its version.
uint64_t probe_of(const at::Tensor& weight) {
  constexpr size_t kElements = 16;
  uint64_t probe = weight._version();
  if (!weight.is_cpu() || weight.numel() == 0 || !weight.is_non_overlapping_and_dense()) return probe;
  const auto* const begin = static_cast<const std::byte*>(weight.const_data_ptr());
  const auto element = static_cast<size_t>(weight.element_size());
  const auto count = static_cast<size_t>(weight.numel());
  const size_t looked_at = std::min(kElements, count);
  for (size_t i = 0; i < looked_at; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, begin + (count - 1) * i / std::max<size_t>(looked_at - 1, 1) * element,
                std::min(element, sizeof bits));
    probe = mix(probe, bits);
  }
  return probe;
}

/// What a step of the optimizer changes in one parameter's state.
uint64_t probe_of(const torch::optim::OptimizerParamState& state) {
  if (const auto* const adam = dynamic_cast<const torch::optim::AdamParamState*>(&state))
    return static_cast<uint64_t>(adam->step());
  if (const auto* const adamw = dynamic_cast<const torch::optim::AdamWParamState*>(&state))
    return static_cast<uint64_t>(adamw->step());
  if (const auto* const sgd = dynamic_cast<const torch::optim::SGDParamState*>(&state)) {
    return sgd->momentum_buffer().defined() ? 1 + probe_of(sgd->momentum_buffer()) : 0;
  }
  if (const auto* const adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state))
    return static_cast<uint64_t>(adagrad->step());
  if (const auto* const rmsprop = dynamic_cast<const torch::optim::RMSpropParamState*>(&state))
    return static_cast<uint64_t>(rmsprop->step());
  return 0;
}

/// A normalisation that takes statistics of this rank's batches alone; empty: there is none.
std::string own_statistics_in(const torch::nn::Module& module) {
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    const auto buffers = child.value()->named_buffers(/*recurse=*/false);
    if (!buffers.contains("running_mean") || !buffers["running_mean"].defined()) continue;
    const auto* const norm = child.value()->as<BatchNormImpl>();
    const bool is_everybodys = norm != nullptr && norm->process_group() && norm->process_group()->size() > 1;
    if (!is_everybodys) return child.key();
  }
  return {};
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
    if (item.module == nullptr) continue;
    for (const at::Tensor& parameter : item.module->parameters()) {
      if (parameter.defined() && seen.insert(parameter.unsafeGetTensorImpl()).second)
        parameters_.push_back(parameter);
    }
  }
}

std::string RecoveryItems::problem() const {
  std::unordered_set<const at::TensorImpl*> optimized;
  for (const RecoveryItem& item : items_) {
    if (item.optimizer != nullptr) {
      if (dynamic_cast<const ShardedOptimizer*>(item.optimizer) != nullptr) {
        return fmt::format("{} is divided among the ranks, and the part of a rank that dies is lost",
                           item.name);
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
      const std::string own = own_statistics_in(*item.module);
      if (!own.empty()) {
        return fmt::format(
            "{}: {} has running statistics of each rank's own batches, which are lost with the rank (convert_sync_batchnorm "
            "makes them common to all)",
            item.name, own);
      }
    } else if (const size_t bytes = bytes_of(item.save()); bytes > kMostKept) {
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
                     [](const RecoveryItem& item) { return item.save != nullptr; });
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

std::vector<torch::optim::Optimizer*> RecoveryItems::optimizers() const {
  std::vector<torch::optim::Optimizer*> optimizers;
  for (const RecoveryItem& item : items_) {
    if (item.optimizer != nullptr) optimizers.push_back(item.optimizer);
  }
  return optimizers;
}

void RecoveryItems::drop_gradients() const {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  for (torch::optim::Optimizer* const optimizer : optimizers()) optimizer->zero_grad();
}

uint64_t RecoveryItems::probe() const {
  uint64_t probe = 0;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.requires_grad()) probe = mix(probe, probe_of(parameter));
  }
  for (const RecoveryItem& item : items_) {
    if (item.optimizer == nullptr) continue;
    // A sum: the state is in no order.
    uint64_t sum = item.optimizer->state().size();
    for (const auto& [parameter, state] : item.optimizer->state()) sum += state ? probe_of(*state) : 0;
    probe = mix(probe, sum);
  }
  return probe;
}

void RecoveryItems::keep() {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].save) kept_[i].state = copy_of(items_[i].save());
    if (items_[i].optimizer == nullptr) continue;
    kept_[i].options.clear();
    for (const auto& group : items_[i].optimizer->param_groups())
      kept_[i].options.push_back(group.options().clone());
  }
  probe_ = probe();
}

void RecoveryItems::restore() {
  for (size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].load) items_[i].load(kept_[i].state);
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
    if (item.optimizer != nullptr) items.add_optimizer(*item.optimizer);
    hashes.push_back(item.save ? hash_of(item.save()) : hash_of(items));
  }
  return hashes;
}

void RecoveryItems::hand_over(const ProcessGroup& group, int donor) {
  for (const RecoveryItem& item : items_) {
    if (item.module != nullptr) {
      sync_module_states(*item.module, {.src = donor, .process_group = group});
    } else if (item.optimizer != nullptr) {
      broadcast_optimizer_state(*item.optimizer, {.src = donor, .process_group = group});
    } else {
      const StateDict state = broadcast_state(group, item.save(), donor);
      if (group.rank() != donor) item.load(state);
    }
  }
}

}  // namespace lockstep::detail
