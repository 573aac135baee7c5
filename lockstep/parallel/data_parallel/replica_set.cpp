#include "lockstep/parallel/data_parallel/replica_set.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel/random_stream.h"
#include "lockstep/parallel/data_parallel/scatter_gather.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// Adds the time of a scope.
class Timed {
 public:
  explicit Timed(std::chrono::nanoseconds& sum) : sum_(sum) {}
  ~Timed() { sum_ += Clock::now() - start_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::chrono::nanoseconds& sum_;
  Clock::time_point start_ = Clock::now();
};

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
      throw ValueError("DataParallel: the replicas differ: replica 0 has " + std::string(what) + " " + a +
                       ", another has " + b + "; a factory must make the same module each time");
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

int threads_of(const DataParallelOptions& options) {
  return options.threads_per_replica > 0 ? options.threads_per_replica
                                         : std::max(1, at::get_num_threads() / options.replicas);
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
        "DataParallel: " + module.name() +
        " cannot be cloned: derive it from torch::nn::Cloneable, or give DataParallel a factory, a "
        "function that makes the module (" +
        std::string(error.what_without_backtrace()) + ")");
  }
}

void keep_random_state(const std::function<void()>& make) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor before = generator.get_state();
  make();
  generator.set_state(before);
}

ReplicaSet::ReplicaSet(std::vector<std::shared_ptr<torch::nn::Module>> modules,
                       const DataParallelOptions& options, ReplicaPlaces places)
    : options_(options),
      places_(std::move(places)),
      modules_(std::move(modules)),
      threads_(options.replicas == 1 ? 0 : options.replicas, threads_of(options)) {
  for (size_t r = 0; r < modules_.size(); ++r) {
    const auto& module = modules_[r];
    if (r > 0) check_replica(*modules_.front(), *module);
    if (r > 0 && !places_.is_on_cpu()) module->to(places_.devices[r]);
    submodules_.push_back(module->modules());
    parameters_.push_back(module->parameters());
    buffers_.push_back(module->buffers());
    generators_.push_back(at::detail::createCPUGenerator());
  }
  const std::vector<size_t> places_of_first = first_places(parameters_.front());
  for (auto& parameters : parameters_) {
    if (first_places(parameters) != places_of_first) {
      throw ValueError(
          "DataParallel: the module has tied parameters, or a module twice, and its clone() unties them (that of "
          "torch::nn::Sequential does); give DataParallel a factory, a function that makes the module");
    }
    std::vector<at::Tensor> once;
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (places_of_first[p] == p) once.push_back(parameters[p]);
    }
    parameters = std::move(once);
  }
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& parameters : parameters_) {
    for (const at::Tensor& parameter : parameters) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      throw ValueError(
          "DataParallel: two replicas have the same parameter itself: the factory must make a module of its own each "
          "time, with new layers; replicas take over the first one's values by themselves");
    }
  }
  for (const auto& submodule : submodules_.front()) {
    const auto* norm = dynamic_cast<const BatchNormImpl*>(submodule.get());
    if (norm == nullptr || !norm->process_group() || options_.replicas == 1) continue;
    throw ValueError(
        "DataParallel: a synchronised batch normalisation waits for other ranks, which replicas in one process "
        "are not; wrap the module in DistributedDataParallel, or leave its normalisations unsynchronised");
  }
  if (options_.replicas > 1) follow_module();
}

std::vector<at::Tensor> ReplicaSet::at_first(const std::vector<at::Tensor>& tensors) const {
  std::vector<at::Tensor> brought;
  for (const at::Tensor& tensor : tensors) brought.push_back(brought_to(places_.devices.front(), tensor));
  return brought;
}

Shards ReplicaSet::scatter(const FoundTensors& inputs) {
  const Timed timed(times_.scatter);
  Shards shards;
  shards.whole = inputs.tensors;
  const int64_t rows = batch_rows(inputs, options_.dim);
  shards.is_divided = rows >= 0;
  shards.sizes = rows < 0 ? std::vector<int64_t>(static_cast<size_t>(options_.replicas), 1)
                          : chunk_sizes(rows, options_.replicas);
  const bool with_gradients = c10::GradMode::is_enabled();
  const at::NoGradGuard no_grad;
  shards.parts = split_tensors(inputs.tensors, shards.sizes, options_.dim);
  for (size_t t = 0; t < shards.whole.size(); ++t) {
    const bool wants = with_gradients && shards.whole[t].defined() && shards.whole[t].requires_grad();
    if (wants) {
      shards.wanting.push_back(t);
      shards.wanting_on.push_back(shards.whole[t].device());
    }
    for (size_t r = 0; r < shards.parts.size(); ++r) {
      at::Tensor& part = shards.parts[r][t];
      if (!part.defined()) continue;
      // The graph behind the batch is the caller's thread's: a replica's ends here.
      // Nor is it told of what another replica does to its own part in place.
      if (with_gradients) part = part.variable_data();
      if (!places_.is_on_cpu()) part = brought_to(places_.devices[r], part);
      if (wants) part.set_requires_grad(true);
    }
  }
  return shards;
}

/// Replicas take over what the user has done to the module.
void ReplicaSet::follow_module() {
  const at::NoGradGuard no_grad;
  bool changed = gradients_.empty();
  for (size_t r = 1; r < modules_.size(); ++r) {
    for (size_t m = 0; m < submodules_[r].size(); ++m) {
      const bool training = submodules_[0][m]->is_training();
      if (submodules_[r][m]->is_training() != training) submodules_[r][m]->train(training);
    }
    for (size_t p = 0; p < parameters_[r].size(); ++p) {
      const at::Tensor& mine = parameters_[0][p];
      at::Tensor& theirs = parameters_[r][p];
      if (!places_.shares_memory) {
        changed = take_value(mine, theirs, places_.devices[r]) || changed;
        continue;
      }
      const bool is_shared =
          mine.const_data_ptr() == theirs.const_data_ptr() && mine.strides() == theirs.strides() &&
          mine.scalar_type() == theirs.scalar_type() && mine.requires_grad() == theirs.requires_grad();
      if (is_shared && mine.numel() > 0) continue;
      if (!is_shared) changed = true;
      share_memory(mine, theirs);
    }
    for (size_t b = 0; b < buffers_[r].size(); ++b) {
      const at::Tensor& mine = buffers_[0][b];
      at::Tensor& theirs = buffers_[r][b];
      if (theirs.scalar_type() == mine.scalar_type() && theirs.sizes() == mine.sizes()) continue;
      theirs.set_data(at::empty_like(mine, at::TensorOptions().device(places_.devices[r])));
    }
    // Unseen by autograd, as the update of statistics in a forward is: one backward may follow two forwards.
    const at::AutoDispatchBelowADInplaceOrView below;
    for (size_t b = 0; b < buffers_[r].size(); ++b) buffers_[r][b].copy_(buffers_[0][b]);
  }
  if (changed) lay_out();
}

void ReplicaSet::lay_out() {
  gradients_.clear();
  const BucketPlan plan = plan_replica_buckets(parameters_.front());
  for (const auto& parameters : parameters_) {
    gradients_.push_back(std::make_unique<ReplicaGradients>(parameters, plan));
  }
}

void ReplicaSet::seed_streams() {
  const bool any = std::any_of(submodules_.front().begin(), submodules_.front().end(),
                               [](const auto& module) { return module->is_training(); });
  if (!any) return;
  const uint64_t key = draw_replica_key();
  for (size_t r = 0; r < generators_.size(); ++r) {
    generators_[r].set_current_seed(replica_seed(key, static_cast<int>(r)));
  }
}

void ReplicaSet::forward(int count, const std::function<void(int)>& work) {
  ++times_.forwards;
  {
    const Timed timed(times_.replicate);
    follow_module();
    seed_streams();
  }
  const Timed timed(times_.forward);
  const at::ThreadLocalState state;
  const auto streams = places_.streams();
  threads_.run(count, "forward", [&](int replica) {
    const at::ThreadLocalStateGuard as_the_caller(state);
    const auto r = static_cast<size_t>(replica);
    const c10::OptionalStreamGuard on_device(streams.empty() ? std::nullopt : streams[r]);
    // A GPU has a generator of its own, which the process's replicas do not share.
    std::optional<ReplicaGeneratorGuard> random;
    if (places_.is_on_cpu()) random.emplace(generators_[r]);
    work(replica);
  });
}

/// In the caller's graph it stands for the graphs of all replicas.
class ReplicaSet::Backward final : public torch::autograd::Node {
 public:
  Backward(std::shared_ptr<ReplicaSet> set, Shards shards, std::vector<FoundTensors> outputs, Join join)
      : shards(std::move(shards)), outputs(std::move(outputs)), join(join), set_(std::move(set)) {}
  std::string name() const override { return "lockstep::DataParallelBackward"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (c10::GradMode::is_enabled()) {
      throw Error("DataParallel: create_graph is not supported: replicas' gradients are not differentiable");
    }
    if (outputs.empty()) {
      throw Error(
          "DataParallel: backward through the same output a second time; call backward with retain_graph the "
          "first time");
    }
    return set_->backward(*this, gradients, torch::autograd::get_current_graph_task_keep_graph());
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    outputs.clear();
    shards.parts.clear();
  }

  Shards shards;
  std::vector<FoundTensors> outputs;  // of each replica
  Join join;

 private:
  std::shared_ptr<ReplicaSet> set_;
};

namespace {

/// Of a mean over all samples, given the means of each replica's: 1 where all have as many.
double weight_of(const Shards& shards, size_t part) {
  int64_t rows = 0;
  for (const int64_t size : shards.sizes) rows += size;
  if (rows == 0) return 1;
  return static_cast<double>(shards.sizes[part] * shards.count()) / static_cast<double>(rows);
}

at::Tensor weighted(const at::Tensor& value, double weight) { return weight == 1 ? value : value * weight; }

at::Tensor mean_of(const Shards& shards, const std::vector<at::Tensor>& losses) {
  std::vector<at::Tensor> parts;
  for (size_t r = 0; r < losses.size(); ++r) {
    if (losses[r].numel() != 1) {
      throw ValueError("DataParallel: a replica's loss must be one number, and replica " + std::to_string(r) +
                       " returned " + std::to_string(losses[r].numel()) +
                       "; let forward return the mean over its samples");
    }
    parts.push_back(weighted(losses[r].reshape({}), weight_of(shards, r)));
  }
  return parts.size() == 1 ? parts.front().clone() : tree_sum(parts) / static_cast<double>(parts.size());
}

/// The part of an output's gradient that is replica `part`'s.
at::Tensor part_of(const at::Tensor& gradient, const std::vector<FoundTensors>& outputs, size_t part,
                   size_t t, int64_t dim) {
  const at::Tensor& output = outputs[part].tensors[t];
  if (output.dim() == 0) return gradient.select(0, static_cast<int64_t>(part));
  int64_t begin = 0;
  for (size_t before = 0; before < part; ++before) begin += outputs[before].tensors[t].size(dim);
  return gradient.narrow(dim, begin, output.size(dim));
}

}  // namespace

std::vector<at::Tensor> ReplicaSet::gather(Shards shards, std::vector<FoundTensors> outputs, Join join) {
  const Timed timed(times_.gather);
  check_alike(outputs);
  const size_t count = outputs.front().tensors.size();
  std::vector<at::Tensor> joined(count);
  std::vector<bool> requires_grad(count);
  {
    const at::NoGradGuard no_grad;
    for (size_t t = 0; t < count; ++t) {
      std::vector<at::Tensor> parts;
      for (const FoundTensors& output : outputs) {
        const at::Tensor& part = output.tensors[t];
        parts.push_back(places_.is_on_cpu() ? part : brought_to(places_.output, part));
        if (part.defined() && part.requires_grad()) requires_grad[t] = true;
      }
      if (join == Join::mean) {
        joined[t] = mean_of(shards, parts);
      } else {
        joined[t] = join_tensors(parts, options_.dim);
      }
    }
  }
  const bool any = std::find(requires_grad.begin(), requires_grad.end(), true) != requires_grad.end();
  if (!any || !c10::GradMode::is_enabled()) return joined;
  torch::autograd::variable_list wanting;
  for (const size_t t : shards.wanting) wanting.push_back(shards.whole[t]);
  shards.whole.clear();
  auto node = c10::make_intrusive<Backward>(shared_from_this(), std::move(shards), std::move(outputs), join);
  node->set_next_edges(torch::autograd::collect_next_edges(wanting));
  for (size_t t = 0; t < count; ++t) {
    if (requires_grad[t]) {
      torch::autograd::set_history(joined[t], node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  return joined;
}

/// What the module's gradients hold goes aside: it is not to be added once for each replica.
std::vector<at::Tensor> ReplicaSet::take_held() {
  std::vector<at::Tensor> held(parameters_.front().size());
  for (size_t p = 0; p < held.size(); ++p) {
    at::Tensor& gradient = parameters_.front()[p].mutable_grad();
    if (!gradient.defined()) continue;
    const at::Tensor& view = gradients_.front()->view(p);
    held[p] =
        view.defined() && !gradient.is_sparse() && gradient.is_alias_of(view) ? gradient.clone() : gradient;
    gradient.reset();
  }
  return held;
}

/// Are the parameters' gradients wanted? torch::autograd::grad() and backward(inputs) compute those of some tensors alone.
bool ReplicaSet::wants_parameters() const {
  const auto* const wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;
  return std::any_of(
      parameters_.front().begin(), parameters_.front().end(), [&](const at::Tensor& parameter) {
        if (!parameter.requires_grad()) return false;
        const auto found = wanted->find(torch::autograd::impl::grad_accumulator(parameter).get());
        return found != wanted->end() && found->second.needed_;
      });
}

/// While it lives, hooks on the module's parameters are not called: they want the sum, not replica 0's part.
class ReplicaSet::HooksAside {
 public:
  explicit HooksAside(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {
    for (const at::Tensor& parameter : parameters) {
      aside_.emplace_back();
      if (parameter.requires_grad()) aside_.back().swap(torch::autograd::impl::hooks(parameter));
    }
  }
  ~HooksAside() {
    for (size_t p = 0; p < aside_.size(); ++p) {
      if (!aside_[p].empty()) torch::autograd::impl::hooks(parameters_[p]).swap(aside_[p]);
    }
  }
  HooksAside(const HooksAside&) = delete;
  HooksAside& operator=(const HooksAside&) = delete;
  at::Tensor called(size_t p, const at::Tensor& gradient) const {
    torch::autograd::variable_list one{gradient};
    for (const auto& hook : aside_[p]) one = (*hook)(one);
    return one.front();
  }

 private:
  const std::vector<at::Tensor>& parameters_;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> aside_{};
};

/// As it was before a backward.
void ReplicaSet::restore(const std::vector<at::Tensor>& held) {
  for (const auto& of_replica : gradients_) of_replica->end(false);
  for (size_t p = 0; p < held.size(); ++p) parameters_.front()[p].mutable_grad() = held[p];
}

/// As it was before a backward that has failed: the next one begins anew.
void ReplicaSet::give_up(const Backward& pass, const std::vector<at::Tensor>& held) {
  for (auto& parameters : parameters_) {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
  restore(held);
  for (const auto& part : pass.shards.parts) {
    for (const size_t t : pass.shards.wanting) part[t].mutable_grad().reset();
  }
}

/// Leaves the sum in the module's gradients and nothing in the other replicas'.
void ReplicaSet::settle(int count, bool averages, const std::vector<at::Tensor>& held,
                        const HooksAside& hooks) {
  for (size_t p = 0; p < held.size(); ++p) {
    bool is_used = false;
    std::vector<at::Tensor> sparse;
    for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
      if (!gradients_[r]->has_gradient(p)) continue;
      is_used = true;
      const at::Tensor& gradient = parameters_[r][p].grad();
      if (gradient.defined() && gradient.is_sparse())
        sparse.push_back(brought_to(parameters_.front()[p].device(), gradient));
    }
    at::Tensor& gradient = parameters_.front()[p].mutable_grad();
    if (!sparse.empty()) {
      gradient = averages && count > 1 ? tree_sum(sparse) / count : tree_sum(sparse);
    } else if (is_used) {
      gradient = gradients_.front()->view(p);
    } else {
      gradient.reset();
    }
    if (gradient.defined()) gradient = hooks.called(p, gradient);
    for (size_t r = 1; r < parameters_.size(); ++r) parameters_[r][p].mutable_grad().reset();
    if (!held[p].defined()) continue;
    if (!gradient.defined()) {
      gradient = held[p];
    } else if (gradient.is_sparse()) {
      gradient = held[p] + gradient;
    } else {
      gradient.add_(held[p]);
    }
  }
}

/// Each replica's backward, on its thread; on GPUs one for all, whose replicas the engine runs on a thread for each GPU:
/// it needs the very thread that has come here.
void ReplicaSet::run_backward(const Backward& pass, const std::vector<at::Tensor>& gradients,
                              bool keep_graph) {
  const bool averages = pass.join == Join::mean;
  const auto add_outputs = [&](size_t r, torch::autograd::variable_list& outputs,
                               torch::autograd::variable_list& theirs) {
    for (size_t t = 0; t < gradients.size(); ++t) {
      const at::Tensor& output = pass.outputs[r].tensors[t];
      if (!gradients[t].defined() || !output.defined() || !output.requires_grad()) continue;
      outputs.push_back(output);
      const at::Tensor part = averages
                                  ? weighted(gradients[t], weight_of(pass.shards, r)).reshape(output.sizes())
                                  : part_of(gradients[t], pass.outputs, r, t, options_.dim);
      theirs.push_back(places_.is_on_cpu() ? part : brought_to(output.device(), part));
    }
  };
  const auto count = static_cast<size_t>(pass.shards.count());
  torch::autograd::variable_list outputs, theirs;
  if (!places_.is_on_cpu()) {
    for (size_t r = 0; r < count; ++r) {
      gradients_[r]->begin();
      add_outputs(r, outputs, theirs);
    }
    if (!outputs.empty()) torch::autograd::backward(outputs, theirs, keep_graph);
    for (size_t r = 0; r < count; ++r) gradients_[r]->end(true);
    return;
  }
  const at::ThreadLocalState state;
  threads_.run(static_cast<int>(count), "backward", [&](int replica) {
    const at::ThreadLocalStateGuard as_the_caller(state);
    const auto r = static_cast<size_t>(replica);
    torch::autograd::variable_list own_outputs, own_gradients;
    add_outputs(r, own_outputs, own_gradients);
    gradients_[r]->begin();
    if (!own_outputs.empty()) torch::autograd::backward(own_outputs, own_gradients, keep_graph);
    gradients_[r]->end(true);
  });
}

/// The first replica's buckets become the sum over the replicas.
void ReplicaSet::add_up(int count, bool averages) {
  if (count == 1) return;
  if (places_.is_on_cpu()) {
    threads_.run(count, "the sum of gradients",
                 [&](int part) { reduce_buckets(gradients_, count, averages, part, count); });
    return;
  }
  for (size_t b = 0; b < gradients_.front()->buckets().size(); ++b) {
    const at::Tensor& first = gradients_.front()->buckets()[b];
    std::vector<at::Tensor> parts;
    for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
      parts.push_back(brought_to(first.device(), gradients_[r]->buckets()[b]));
    }
    first.copy_(averages ? tree_sum(parts) / count : tree_sum(parts));
  }
}

std::vector<at::Tensor> ReplicaSet::backward(const Backward& pass, const std::vector<at::Tensor>& gradients,
                                             bool keep_graph) {
  ++times_.backwards;
  const int count = pass.shards.count();
  const bool averages = pass.join == Join::mean;
  const at::NoGradGuard no_grad;
  const bool wants = wants_parameters();
  const std::vector<at::Tensor> held = take_held();
  const HooksAside hooks(parameters_.front());
  try {
    const Timed timed(times_.backward);
    run_backward(pass, gradients, keep_graph);
  } catch (...) {
    give_up(pass, held);
    throw;
  }
  const Timed timed(times_.reduce);
  if (wants) {
    try {
      add_up(count, averages);
      settle(count, averages, held, hooks);
    } catch (...) {  // of a hook on a parameter
      give_up(pass, held);
      throw;
    }
  } else {
    restore(held);
  }
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < pass.shards.wanting.size(); ++i) {
    const size_t t = pass.shards.wanting[i];
    std::vector<at::Tensor> parts;
    bool any = false;
    for (const auto& part : pass.shards.parts) {
      at::Tensor gradient = part[t].grad();
      any = any || gradient.defined();
      parts.push_back(gradient.defined() ? gradient : at::zeros_like(part[t]));
      if (!places_.is_on_cpu()) parts.back() = brought_to(pass.shards.wanting_on[i], parts.back());
      part[t].mutable_grad().reset();
    }
    if (!any) {
      results.emplace_back();
      continue;
    }
    const bool is_divided = pass.shards.is_divided && parts.front().dim() > 0;
    at::Tensor whole = is_divided ? at::cat(parts, options_.dim) : tree_sum(parts);
    results.push_back(averages && count > 1 ? whole / count : whole);
  }
  return results;
}

}  // namespace lockstep::detail
