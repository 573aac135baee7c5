#include "lockstep/parallel/data_parallel/replica_mirror.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel/random_stream.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep::detail {
namespace {

std::string in_words(const std::string& name, const at::Tensor& tensor) {
  std::ostringstream text;
  text << name << " " << tensor.sizes() << " " << c10::toString(tensor.scalar_type());
  return text.str();
}

template <class Dict>
void check_same(const char* what, const Dict& mine, const Dict& theirs) {
  for (size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
    const std::string a = i < mine.size() ? in_words(mine[i].key(), mine[i].value()) : "none";
    const std::string b = i < theirs.size() ? in_words(theirs[i].key(), theirs[i].value()) : "none";
    if (a != b) {
      throw ValueError(
          fmt::format("DataParallel: the replicas differ: replica 0 has {} {}, another has {}; a factory "
                      "must make the same module each time",
                      what, a, b));
    }
  }
}

/// Where each tensor stands first: the same one under a second name (tied weights, a module registered twice) is one.
std::vector<size_t> first_places(const std::vector<at::Tensor>& tensors) {
  std::unordered_map<const at::TensorImpl*, size_t> seen;
  std::vector<size_t> places;
  for (const at::Tensor& tensor : tensors) {
    places.push_back(seen.emplace(tensor.unsafeGetTensorImpl(), places.size()).first->second);
  }
  return places;
}

/// Leaves each parameter of each replica once. Throws ValueError if they are not tied alike.
void keep_each_once(std::vector<std::vector<at::Tensor>>& of_replicas) {
  const std::vector<size_t> places = first_places(of_replicas.front());
  for (auto& parameters : of_replicas) {
    if (first_places(parameters) != places) {
      throw ValueError(
          "DataParallel: the module has tied parameters, or a module twice, and its clone() unties them (that of "
          "torch::nn::Sequential does); give DataParallel a factory, a function that makes the module");
    }
    std::vector<at::Tensor> once;
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (places[p] == p) once.push_back(parameters[p]);
    }
    parameters = std::move(once);
  }
}

void check_apart(const std::vector<std::vector<at::Tensor>>& of_replicas) {
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& parameters : of_replicas) {
    for (const at::Tensor& parameter : parameters) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      throw ValueError(
          "DataParallel: two replicas have the same parameter itself: the factory must make a module of its own each "
          "time, with new layers; replicas take over the first one's values by themselves");
    }
  }
}

void refuse_synchronized_norms(const std::vector<std::shared_ptr<torch::nn::Module>>& submodules) {
  for (const auto& submodule : submodules) {
    const auto* norm = dynamic_cast<const BatchNormImpl*>(submodule.get());
    if (norm == nullptr || !norm->process_group()) continue;
    throw ValueError(
        "DataParallel: a synchronized batch normalization waits for other ranks, which replicas in one process "
        "are not; wrap the module in DistributedDataParallel, or leave its normalizations unsynchronized");
  }
}

}  // namespace

void check_replica(const torch::nn::Module& module, const torch::nn::Module& replica) {
  check_same("parameter", module.named_parameters(), replica.named_parameters());
  check_same("buffer", module.named_buffers(), replica.named_buffers());
}

void share_memory(const at::Tensor& parameter, at::Tensor& with) {
  const bool requires_grad = parameter.requires_grad();
  with.set_data(parameter.variable_data());
  if (with.requires_grad() != requires_grad) with.set_requires_grad(requires_grad);
  // So that autograd notices in every replica when a parameter is changed between forward and backward.
  with.unsafeGetTensorImpl()->set_version_counter(parameter.unsafeGetTensorImpl()->version_counter());
}

std::shared_ptr<torch::nn::Module> clone_module(const torch::nn::Module& module) {
  try {
    return module.clone();
  } catch (const c10::Error& error) {
    throw ValueError(
        fmt::format("DataParallel: {} cannot be cloned: derive it from torch::nn::Cloneable, or give "
                    "DataParallel a factory, a function that makes the module ({})",
                    module.name(), error.what_without_backtrace()));
  }
}

void keep_random_state(const std::function<void()>& make) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  make();
  generator.set_state(before);
}

ReplicaMirror::ReplicaMirror(std::vector<std::shared_ptr<torch::nn::Module>> modules, ReplicaPlaces places)
    : places_(std::move(places)) {
  for (size_t r = 0; r < modules.size(); ++r) {
    const auto& module = modules[r];
    if (r > 0) check_replica(*modules.front(), *module);
    if (r > 0 && !places_.is_on_cpu()) module->to(places_.devices[r]);
    submodules_.push_back(module->modules());
    parameters_.push_back(module->parameters());
    buffers_.push_back(module->buffers());
    generators_.push_back(at::detail::createCPUGenerator());
  }
  keep_each_once(parameters_);
  check_apart(parameters_);
  if (modules.size() > 1) follow_module();
}

void ReplicaMirror::follow_module() {
  const at::NoGradGuard no_grad;
  // Made synchronized since, as DistributedDataParallel's users do it with the whole model.
  if (submodules_.size() > 1) refuse_synchronized_norms(submodules_.front());
  bool changed = gradients_.empty();
  for (size_t r = 1; r < submodules_.size(); ++r) {
    for (size_t m = 0; m < submodules_[r].size(); ++m) {
      const bool training = submodules_[0][m]->is_training();
      if (submodules_[r][m]->is_training() != training) submodules_[r][m]->train(training);
    }
    if (follow_parameters(r)) changed = true;
    follow_buffers(r);
  }
  if (changed) lay_out();
}

/// Says whether gradients must be laid out anew.
bool ReplicaMirror::follow_parameters(size_t replica) {
  bool changed = false;
  for (size_t p = 0; p < parameters_[replica].size(); ++p) {
    const at::Tensor& mine = parameters_[0][p];
    at::Tensor& theirs = parameters_[replica][p];
    if (!places_.shares_memory) {
      changed = take_value(mine, theirs, places_.devices[replica]) || changed;
      continue;
    }
    const bool is_shared = mine.const_data_ptr() == theirs.const_data_ptr() &&
                           mine.strides() == theirs.strides() && mine.scalar_type() == theirs.scalar_type() &&
                           mine.requires_grad() == theirs.requires_grad();
    if (is_shared && mine.numel() > 0) continue;
    if (!is_shared) changed = true;
    share_memory(mine, theirs);
  }
  return changed;
}

void ReplicaMirror::follow_buffers(size_t replica) {
  for (size_t b = 0; b < buffers_[replica].size(); ++b) {
    const at::Tensor& mine = buffers_[0][b];
    at::Tensor& theirs = buffers_[replica][b];
    if (theirs.scalar_type() == mine.scalar_type() && theirs.sizes() == mine.sizes()) continue;
    theirs.set_data(at::empty_like(mine, at::TensorOptions().device(places_.devices[replica])));
  }
  // Unseen by autograd, as the update of statistics in a forward is: one backward may follow two forwards.
  const at::AutoDispatchBelowADInplaceOrView below;
  for (size_t b = 0; b < buffers_[replica].size(); ++b) buffers_[replica][b].copy_(buffers_[0][b]);
}

void ReplicaMirror::lay_out() {
  gradients_.clear();
  const BucketPlan plan = plan_replica_buckets(parameters_.front());
  for (const auto& parameters : parameters_) {
    gradients_.push_back(std::make_unique<ReplicaGradients>(parameters, plan));
  }
}

void ReplicaMirror::seed_streams() {
  const bool any = std::any_of(submodules_.front().begin(), submodules_.front().end(),
                               [](const auto& module) { return module->is_training(); });
  if (!any) return;
  const uint64_t key = draw_replica_key();
  for (size_t r = 0; r < generators_.size(); ++r) {
    generators_[r].set_current_seed(replica_seed(key, static_cast<int>(r)));
  }
}

bool ReplicaMirror::wants_gradients() const {
  const auto* const wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;
  return std::any_of(
      parameters_.front().begin(), parameters_.front().end(), [&](const at::Tensor& parameter) {
        if (!parameter.requires_grad()) return false;
        const auto found = wanted->find(torch::autograd::impl::grad_accumulator(parameter).get());
        return found != wanted->end() && found->second.needed_;
      });
}

std::vector<size_t> ReplicaMirror::trainable() const {
  std::vector<size_t> numbers;
  for (size_t p = 0; p < parameters_.front().size(); ++p) {
    if (parameters_.front()[p].requires_grad()) numbers.push_back(p);
  }
  return numbers;
}

std::vector<torch::autograd::Edge> ReplicaMirror::wrapper_edges() const {
  std::vector<torch::autograd::Edge> edges;
  bool is_wrapped = false;
  for (const size_t p : trainable()) {
    const at::Tensor& parameter = parameters_.front()[p];
    edges.emplace_back(torch::autograd::impl::grad_accumulator(parameter), 0);
    is_wrapped = is_wrapped || !hooks_for_sums(parameter).empty();
  }
  if (!is_wrapped) edges.clear();
  return edges;
}

}  // namespace lockstep::detail
