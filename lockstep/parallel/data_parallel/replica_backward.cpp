#include "lockstep/parallel/data_parallel/replica_backward.h"

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/parallel/data_parallel/replica_gradients.h"

namespace lockstep::detail {

HooksAside::HooksAside(const std::vector<at::Tensor>& parameters) : parameters_(parameters) {
  for (const at::Tensor& parameter : parameters) {
    aside_.emplace_back();
    if (!parameter.requires_grad()) continue;
    aside_.back().swap(torch::autograd::impl::hooks(parameter));
    for (BucketSlotHook* const hook : hooks_for_sums(parameter)) for_sums_.push_back(hook);
  }
  for (BucketSlotHook* const hook : for_sums_) hook->set_aside(true);
}

HooksAside::~HooksAside() {
  for (BucketSlotHook* const hook : for_sums_) hook->set_aside(false);
  for (size_t p = 0; p < aside_.size(); ++p) {
    if (!aside_[p].empty()) torch::autograd::impl::hooks(parameters_[p]).swap(aside_[p]);
  }
}

at::Tensor HooksAside::call(size_t p, const at::Tensor& gradient) const {
  torch::autograd::variable_list one{gradient};
  for (const auto& hook : aside_[p]) one = (*hook)(one);
  return one.front();
}

ReplicaBackward::ReplicaBackward(const ReplicaMirror& mirror, ReplicaThreads& threads,
                                 const ReplicaPass& pass, int64_t dim)
    : mirror_(mirror),
      threads_(threads),
      pass_(pass),
      dim_(dim),
      held_(mirror.parameters().front().size()),
      hooks_(mirror.parameters().front()) {
  take_held();
}

ReplicaBackward::~ReplicaBackward() {
  if (!is_committed_) undo();
}

void ReplicaBackward::take_held() {
  for (size_t p = 0; p < held_.size(); ++p) {
    at::Tensor& gradient = mirror_.parameters().front()[p].mutable_grad();
    if (!gradient.defined()) continue;
    const at::Tensor& view = mirror_.gradients().front()->view(p);
    held_[p] =
        view.defined() && !gradient.is_sparse() && gradient.is_alias_of(view) ? gradient.clone() : gradient;
    gradient.reset();
  }
}

void ReplicaBackward::restore_held() {
  for (const auto& of_replica : mirror_.gradients()) of_replica->end(ReplicaGradients::End::given_up);
  for (size_t p = 0; p < held_.size(); ++p) mirror_.parameters().front()[p].mutable_grad() = held_[p];
}

void ReplicaBackward::undo() {
  for (const auto& parameters : mirror_.parameters()) {
    for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
  restore_held();
  for (const auto& part : pass_.shards.parts) {
    for (const size_t t : pass_.shards.wanting) part[t].mutable_grad().reset();
  }
}

/// On its thread; on GPUs one backward for all, whose replicas the engine runs on a thread for each GPU: it needs the
/// very thread that has come here.
void ReplicaBackward::run(const std::vector<at::Tensor>& gradients, bool keep_graph) {
  const auto count = static_cast<size_t>(pass_.shards.count());
  if (!mirror_.places().is_on_cpu()) {
    torch::autograd::variable_list outputs, theirs;
    for (size_t r = 0; r < count; ++r) {
      mirror_.gradients()[r]->begin();
      add_outputs(r, gradients, outputs, theirs);
    }
    if (!outputs.empty()) torch::autograd::backward(outputs, theirs, keep_graph);
    for (size_t r = 0; r < count; ++r) mirror_.gradients()[r]->end(ReplicaGradients::End::complete);
    return;
  }
  const at::ThreadLocalState state;
  threads_.run(static_cast<int>(count), "backward", [&](int replica) {
    const at::ThreadLocalStateGuard as_the_caller(state);
    const auto r = static_cast<size_t>(replica);
    torch::autograd::variable_list outputs, theirs;
    add_outputs(r, gradients, outputs, theirs);
    mirror_.gradients()[r]->begin();
    if (!outputs.empty()) torch::autograd::backward(outputs, theirs, keep_graph);
    mirror_.gradients()[r]->end(ReplicaGradients::End::complete);
  });
}

/// Replica r's outputs through which its backward goes, and their gradients.
void ReplicaBackward::add_outputs(size_t r, const std::vector<at::Tensor>& gradients,
                                  torch::autograd::variable_list& outputs,
                                  torch::autograd::variable_list& theirs) const {
  for (size_t t = 0; t < gradients.size(); ++t) {
    const at::Tensor& output = pass_.outputs[r].tensors[t];
    if (!gradients[t].defined() || !output.defined() || !output.requires_grad()) continue;
    outputs.push_back(output);
    const at::Tensor part = divide_gradient(pass_, gradients[t], r, t, dim_);
    theirs.push_back(mirror_.places().is_on_cpu() ? part : brought_to(output.device(), part));
  }
}

void ReplicaBackward::add_up() {
  add_buckets();
  for (size_t p = 0; p < held_.size(); ++p) settle(p);
  has_sums_ = true;
}

std::vector<at::Tensor> ReplicaBackward::take_sums(const std::vector<size_t>& parameters) {
  add_buckets();
  std::vector<at::Tensor> sums;
  for (const size_t p : parameters) {
    const at::Tensor sum = find_sum(p);
    // The next backward of the replicas overwrites their buckets, and may come before the engine has used these.
    sums.push_back(sum.defined() && !sum.is_sparse() ? sum.clone() : sum);
  }
  for (const auto& of_replica : mirror_.parameters()) {
    for (const at::Tensor& parameter : of_replica) parameter.mutable_grad().reset();
  }
  return sums;
}

/// The first replica's buckets become the sum over the replicas.
void ReplicaBackward::add_buckets() {
  const int count = pass_.shards.count();
  const bool averages = pass_.join == Join::mean;
  const auto& gradients = mirror_.gradients();
  if (count == 1) return;
  if (mirror_.places().is_on_cpu()) {
    threads_.run(count, "the sum of gradients",
                 [&](int part) { reduce_buckets(gradients, count, averages, part, count); });
    return;
  }
  for (size_t b = 0; b < gradients.front()->buckets().size(); ++b) {
    const at::Tensor& first = gradients.front()->buckets()[b];
    std::vector<at::Tensor> parts;
    for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
      parts.push_back(brought_to(first.device(), gradients[r]->buckets()[b]));
    }
    first.copy_(averages ? tree_sum(parts) / count : tree_sum(parts));
  }
}

/// The sum over the replicas of one parameter's gradient; undefined if none has one.
at::Tensor ReplicaBackward::find_sum(size_t p) const {
  const int count = pass_.shards.count();
  const auto& parameters = mirror_.parameters();
  bool is_used = false;
  std::vector<at::Tensor> sparse;
  for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
    if (!mirror_.gradients()[r]->has_gradient(p)) continue;
    is_used = true;
    const at::Tensor& gradient = parameters[r][p].grad();
    if (gradient.defined() && gradient.is_sparse())
      sparse.push_back(brought_to(parameters.front()[p].device(), gradient));
  }
  if (!sparse.empty()) {
    return pass_.join == Join::mean && count > 1 ? tree_sum(sparse) / count : tree_sum(sparse);
  }
  return is_used ? mirror_.gradients().front()->view(p) : at::Tensor();
}

/// The module's gradient is the sum, and what it held; the other replicas have none.
void ReplicaBackward::settle(size_t p) {
  const auto& parameters = mirror_.parameters();
  at::Tensor& gradient = parameters.front()[p].mutable_grad();
  gradient = find_sum(p);
  if (gradient.defined()) gradient = hooks_.call(p, gradient);
  for (size_t r = 1; r < parameters.size(); ++r) parameters[r][p].mutable_grad().reset();
  if (!held_[p].defined()) return;
  if (!gradient.defined()) {
    gradient = held_[p];
  } else if (gradient.is_sparse()) {
    gradient = held_[p] + gradient;
  } else {
    gradient.add_(held_[p]);
  }
}

std::vector<at::Tensor> ReplicaBackward::commit() {
  if (!has_sums_) restore_held();
  std::vector<at::Tensor> of_inputs = take_input_gradients(pass_, dim_, mirror_.places());
  is_committed_ = true;
  return of_inputs;
}

}  // namespace lockstep::detail
