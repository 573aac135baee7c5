#include "lockstep/step/replica_items.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <optional>
#include <sstream>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/optim/group_tensors.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/step/replica_hash.h"

namespace lockstep::detail {
namespace {

/// Statistics that each rank takes of its own batches. Those of SyncBatchNorm are the same on all ranks.
bool has_own_statistics(const torch::nn::Module& module) {
  const auto own = module.named_buffers(/*recurse=*/false);
  if (!own.contains("running_mean") || !own.contains("running_var")) return false;
  const auto* const norm = module.as<BatchNormImpl>();
  return norm == nullptr || !norm->process_group() || norm->process_group()->size() == 1;
}

bool is_statistic(const std::string& name) {
  return name == "running_mean" || name == "running_var" || name == "num_batches_tracked";
}

/// The buffers that may differ between ranks.
std::set<const at::TensorImpl*> own_statistics(const torch::nn::Module& module) {
  std::set<const at::TensorImpl*> found;
  for (const at::Tensor& statistic : list_own_statistics(module))
    found.insert(statistic.unsafeGetTensorImpl());
  return found;
}

std::string format_value(const StateDict::Scalar& scalar) {
  return std::visit([](const auto& value) { return fmt::format("{}", value); }, scalar);
}

/// The value of a list, a dictionary or anything else that archives hold.
std::string format_value(const c10::IValue& value) {
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  if (value.isInt()) return fmt::format("{}", value.toInt());
  if (value.isBool()) return fmt::format("{}", value.toBool());
  if (value.isString()) return value.toStringRef();
  if (value.isNone()) return "none";
  const std::vector<char> bytes = torch::jit::pickle(value);
  return fmt::format("a value with hash {:016x}", hash_of_memory(bytes.data(), bytes.size()));
}

/// Calls `take_tensor` and `take_text` with everything in an archive, by its path.
template <class TakeTensor, class TakeText>
void visit_archive(torch::serialize::InputArchive& archive, const std::string& prefix,
                   const TakeTensor& take_tensor, const TakeText& take_text) {
  for (const std::string& key : archive.keys()) {
    at::Tensor tensor;
    torch::serialize::InputArchive nested;
    c10::IValue value;
    if (archive.try_read(key, tensor)) {
      take_tensor(prefix + key, tensor);
    } else if (archive.try_read(key, nested)) {
      visit_archive(nested, fmt::format("{}{}.", prefix, key), take_tensor, take_text);
    } else if (archive.try_read(key, value)) {
      take_text(prefix + key, format_value(value));
    }
  }
}

/// What `thing`, state or options of a class that is not LibTorch's, writes to an archive; nothing if it writes none.
template <class Thing>
std::optional<torch::serialize::InputArchive> read_archive(const Thing& thing, bool may_lack) {
  torch::serialize::OutputArchive written;
  try {
    thing.serialize(written);
  } catch (const c10::Error& error) {
    if (may_lack) return std::nullopt;
    throw ValueError(
        fmt::format("{} cannot be compared between ranks: its serialize(OutputArchive&) throws: {}",
                    c10::demangle(typeid(thing).name()), error.what_without_backtrace()));
  }
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  return archive;
}

/// Calls `take_tensor` and `take_text` with what LBFGS remembers. Not with `al` and `prev_loss`, this rank's
/// own loss, which each step writes before it reads them.
template <class TakeTensor, class TakeText>
void visit_lbfgs(const torch::optim::LBFGSParamState& state, const TakeTensor& take_tensor,
                 const TakeText& take_text) {
  take_text("func_evals", fmt::format("{}", state.func_evals()));
  take_text("n_iter", fmt::format("{}", state.n_iter()));
  take_text("t", fmt::format("{}", state.t()));
  take_tensor("d", state.d());
  take_tensor("H_diag", state.H_diag());
  take_tensor("prev_flat_grad", state.prev_flat_grad());
  const auto take_all = [&](const char* name, const std::deque<at::Tensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) take_tensor(fmt::format("{}.{}", name, i), tensors[i]);
  };
  take_all("old_dirs", state.old_dirs());
  take_all("old_stps", state.old_stps());
  take_all("ro", state.ro());
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

std::string describe_quantizer(const at::Tensor& tensor) {
  if (tensor.qscheme() != at::kPerTensorAffine) return " quantized";
  return fmt::format(" quantized with scale {} and zero point {}", tensor.q_scale(), tensor.q_zero_point());
}

}  // namespace

std::vector<at::Tensor> list_own_statistics(const torch::nn::Module& module) {
  std::vector<at::Tensor> found;
  std::unordered_set<const at::TensorImpl*> seen;
  const auto collect = [&](const torch::nn::Module& part) {
    if (!has_own_statistics(part)) return;
    for (const auto& item : part.named_buffers(/*recurse=*/false)) {
      if (!is_statistic(item.key()) || !item.value().defined()) continue;
      if (seen.insert(item.value().unsafeGetTensorImpl()).second) found.push_back(item.value());
    }
  };
  collect(module);  // by itself: it may be no std::shared_ptr's
  for (const auto& child : module.modules(/*include_self=*/false)) collect(*child);
  return found;
}

void ReplicaItems::add_text(std::string name, std::string text) {
  items_.push_back({std::move(name), std::move(text), {}});
}

void ReplicaItems::add_tensor(std::string name, const at::Tensor& tensor, std::string more,
                              bool has_contents) {
  if (!tensor.defined()) return add_text(std::move(name), "undefined");
  const at::NoGradGuard no_grad;
  const std::string description = describe(tensor) + more;
  if (!has_contents || tensor.is_meta()) return add_text(std::move(name), description);
  if (tensor.is_sparse()) {
    const at::Tensor sorted = tensor.detach().coalesce();
    const std::string entries = fmt::format("{} sparse with {} entries", description, sorted._nnz());
    items_.push_back({name + " (indices)", entries, sorted.indices()});
    items_.push_back({name + " (values)", entries, sorted.values()});
  } else if (tensor.layout() != at::kStrided) {
    items_.push_back({std::move(name), description, tensor.detach().to_dense()});
  } else if (tensor.is_quantized()) {
    items_.push_back({std::move(name), description + describe_quantizer(tensor), tensor.detach().int_repr()});
  } else {
    items_.push_back({std::move(name), description, tensor.detach()});
  }
}

void ReplicaItems::add_module(const torch::nn::Module& module, const std::set<std::string>& ignored,
                              bool compare_buffers) {
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    if (ignored.contains(item.key())) {
      ignored_.insert(tensor.unsafeGetTensorImpl());
      continue;
    }
    if (!names_.emplace(tensor.unsafeGetTensorImpl(), item.key()).second) continue;
    compared_.insert(item.key());
    add_tensor("parameter " + item.key(), tensor, tensor.requires_grad() ? " requires_grad" : " frozen");
  }
  const auto own = own_statistics(module);
  std::set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_buffers()) {
    const at::TensorImpl* const tensor = item.value().unsafeGetTensorImpl();
    if (ignored.contains(item.key()) || !item.value().defined() || !seen.insert(tensor).second) continue;
    const bool has_contents = compare_buffers && !own.contains(tensor);
    if (has_contents) compared_.insert(item.key());
    add_tensor("buffer " + item.key(), item.value(), "", has_contents);
  }
}

std::string ReplicaItems::name_of(const at::Tensor& parameter, size_t group, size_t number) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  if (found != names_.end()) return found->second;
  return fmt::format("parameter {} of group {}", number, group);
}

void ReplicaItems::add_options(const torch::optim::OptimizerOptions& options, const std::string& suffix,
                               bool skips_unknown) {
  const auto take_text = [&](const std::string& name, std::string text) {
    add_text(fmt::format("optimizer option {}{}", name, suffix), std::move(text));
  };
  if (const auto members = option_members(options)) {
    for (const auto& [name, value] : members->scalars) take_text(name, format_value(value));
    return;
  }
  const auto take_tensor = [&](const std::string& name, const at::Tensor& tensor) {
    add_tensor(fmt::format("optimizer option {}{}", name, suffix), tensor);
  };
  if (auto archive = read_archive(options, skips_unknown))
    visit_archive(*archive, "", take_tensor, take_text);
}

void ReplicaItems::add_state(const torch::optim::OptimizerParamState& state, const std::string& suffix,
                             bool skips_unknown) {
  const auto take_text = [&](const std::string& name, std::string text) {
    add_text(fmt::format("optimizer state {}{}", name, suffix), std::move(text));
  };
  const auto take_tensor = [&](const std::string& name, const at::Tensor& tensor) {
    add_tensor(fmt::format("optimizer state {}{}", name, suffix), tensor);
  };
  if (const auto members = state_members(state)) {
    for (const auto& [name, value] : members->scalars) take_text(name, format_value(value));
    for (const auto& [name, tensor] : members->tensors) take_tensor(name, tensor);
  } else if (const auto* lbfgs = dynamic_cast<const torch::optim::LBFGSParamState*>(&state)) {
    visit_lbfgs(*lbfgs, take_tensor, take_text);
  } else if (auto archive = read_archive(state, skips_unknown)) {
    visit_archive(*archive, "", take_tensor, take_text);
  }
}

void ReplicaItems::add_optimizer(const torch::optim::Optimizer& optimizer, bool skips_unknown) {
  const std::string which = ++optimizers_ == 1 ? "" : fmt::format(" of optimizer {}", optimizers_);
  const auto groups = tensors_once(optimizer.param_groups());
  const auto& defaults = optimizer.defaults();
  const bool is_divided = dynamic_cast<const ShardedOptimizer*>(&optimizer) != nullptr;
  add_text("optimizer type" + which,
           c10::demangle(typeid(defaults).name()) + (is_divided ? ", divided among the ranks" : ""));
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string suffix = fmt::format(" of parameter group {}{}", g, which);
    add_text("number of parameters" + suffix, fmt::format("{}", groups[g].size()));
    add_options(optimizer.param_groups()[g].options(), suffix, skips_unknown);
  }
  if (is_divided) return;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t p = 0; p < groups[g].size(); ++p) {
      const at::Tensor& parameter = groups[g][p];
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || !found->second) continue;
      if (ignored_.contains(parameter.unsafeGetTensorImpl())) continue;
      add_state(*found->second, fmt::format(" of {}{}", name_of(parameter, g, p), which), skips_unknown);
    }
  }
}

void ReplicaItems::add_average(const StateDict& average) {
  for (const auto& [name, value] : average.scalars) add_text("average's " + name, format_value(value));
  for (const auto& [name, tensor] : average.tensors) {
    if (compared_.contains(name)) add_tensor("average of " + name, tensor);
  }
}

at::Tensor comparable(const at::Tensor& contents) {
  const at::NoGradGuard no_grad;
  return contents.detach().resolve_conj().resolve_neg().cpu().contiguous();
}

uint64_t hash_of_contents(const at::Tensor& contents) {
  if (!contents.defined()) return 0;
  const at::Tensor dense = comparable(contents);
  return hash_of_memory(dense.const_data_ptr(), dense.nbytes());
}

}  // namespace lockstep::detail
