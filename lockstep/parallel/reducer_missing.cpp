// What becomes of parameters without a gradient, of sparse gradients, and of passes that were cut short.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/reducer.h"

namespace lockstep {
namespace {

/// One character per rank and parameter in what the ranks tell each other, after one for the rank itself.
constexpr char kActive = 'a', kFailed = 'f', kJoined = 'j';
constexpr char kReady = '1', kMissing = '0', kEarlier = 'e';  // kEarlier: under no_sync(), not in this pass

std::string ranks_with(const std::vector<std::string>& masks, size_t at, const std::string& marks) {
  std::string ranks;
  for (size_t r = 0; r < masks.size(); ++r) {
    if (masks[r][0] == kJoined && at > 0) continue;
    if (marks.find(masks[r][at]) == std::string::npos) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
  }
  return ranks;
}

/// The sum of everybody's sparse tensors, in the same tree over ranks as dense ones.
at::Tensor sum_of(const std::vector<at::Tensor>& parts, size_t begin, size_t end) {
  if (end - begin == 1) return parts[begin].coalesce();
  size_t half = 1;
  while (half * 2 < end - begin) half *= 2;
  return at::add(sum_of(parts, begin, begin + half), sum_of(parts, begin + half, end)).coalesce();
}

/// No rows at all, in the form of an embedding's gradient.
at::Tensor no_rows(const at::Tensor& parameter) {
  std::vector<int64_t> values = parameter.sizes().vec();
  values[0] = 0;
  return at::sparse_coo_tensor(at::empty({1, 0}, parameter.options().dtype(at::kLong)),
                               at::empty(values, parameter.options()), parameter.sizes(),
                               parameter.options().layout(at::kSparse),
                               /*is_coalesced=*/true);
}

at::Tensor sum_sparse(const ProcessGroup& group, const at::Tensor& gradient) {
  const at::Tensor own = gradient.coalesce();
  const auto indices = group.all_gather_uneven(own.indices().t().contiguous());
  const auto values = group.all_gather_uneven(own.values());
  std::vector<at::Tensor> parts;
  for (size_t r = 0; r < indices.size(); ++r) {
    parts.push_back(at::sparse_coo_tensor(indices[r].t(), values[r], gradient.sizes(), gradient.options(),
                                          /*is_coalesced=*/true));
  }
  return sum_of(parts, 0, parts.size());
}

}  // namespace

/// Lets the buckets leave that wait for gradients which will not come. Such a parameter contributes what it
/// has: its old gradient, or zeros. Returns the old gradients, by parameter.
std::vector<at::Tensor> Reducer::contribute_missing(Role role) {
  std::vector<at::Tensor> kept(parameters_.size());
  if (next_bucket_ == buckets_.size()) return kept;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (!parameter.is_trainable || parameter.is_ready) continue;
    --buckets_[parameter.bucket].pending;
    if (parameter.is_sparse) continue;
    const at::Tensor& old = parameter.tensor.grad();
    if (role == Role::active && old.defined()) {
      kept[p] = old.clone();
      if (!old.is_alias_of(parameter.view)) parameter.view.copy_(old);
    } else {
      parameter.view.zero_();
    }
  }
  return kept;
}

void Reducer::reduce_sparse(Role role, int divisor) {
  for (Parameter& parameter : parameters_) {
    if (!parameter.is_trainable || !parameter.is_sparse) continue;
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    const bool is_there = role == Role::active && gradient.defined() && gradient.is_sparse();
    const at::Tensor sum = sum_sparse(group_, is_there ? gradient : no_rows(parameter.tensor));
    // Rows that no rank used: whatever there was stays as it was.
    if (sum._nnz() > 0 && role != Role::failed) {
      gradient = sum.div(divisor > 0 ? divisor : group_.size());
    } else if (role == Role::joined) {
      gradient.reset();
    }
  }
}

/// Some rank lacks some gradient. Every rank learns which, and either all throw or each parameter that no
/// rank used keeps its old gradient. Returns whether the step's gradients are of use.
bool Reducer::settle(Role role, const std::vector<at::Tensor>& kept) {
  std::string mask(1 + parameters_.size(), kReady);
  mask[0] = role == Role::active ? kActive : role == Role::failed ? kFailed : kJoined;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Parameter& parameter = parameters_[p];
    if (!parameter.is_trainable || parameter.is_ready) continue;
    mask[1 + p] = parameter.was_used ? kEarlier : kMissing;
  }
  const std::vector<std::string> masks = group_.all_gather_bytes(mask);
  if (!ranks_with(masks, 0, {kFailed}).empty()) {
    settle_failed(masks, role);
    return false;
  }
  if (role != Role::joined && !allows_missing()) report_missing(masks);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (parameter.is_ready || !parameter.view.defined()) continue;
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    const bool used_somewhere = !ranks_with(masks, 1 + p, {kReady, kEarlier}).empty();
    if (used_somewhere) {
      take_average(parameter);
    } else if (role == Role::joined) {
      gradient.reset();
    } else if (kept[p].defined() && gradient.is_alias_of(parameter.view)) {
      gradient.copy_(kept[p]);
    }
  }
  return true;
}

void Reducer::take_average(Parameter& parameter) {
  parameter.tensor.mutable_grad() =
      options_.gradient_as_bucket_view ? parameter.view : parameter.view.clone();
}

/// A rank that has joined holds the others' averages: it may have to step for its share of the parameters.
void Reducer::take_averages() {
  for (Parameter& parameter : parameters_) {
    if (parameter.view.defined()) take_average(parameter);
  }
}

/// Nobody's gradients are of use: they become zero everywhere, and the ranks whose own backward went well
/// learn why.
void Reducer::settle_failed(const std::vector<std::string>& masks, Role role) {
  for (Parameter& parameter : parameters_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!parameter.is_trainable || !gradient.defined()) continue;
    if (parameter.is_sparse || gradient.requires_grad()) {
      gradient.reset();
    } else {
      gradient.zero_();
    }
    parameter.was_used = false;
  }
  order_.clear();
  if (role == Role::active) {
    throw Error("DistributedDataParallel: the forward or backward pass of rank " +
                ranks_with(masks, 0, {kFailed}) +
                " ended in an exception, so this step's gradients could not be averaged and are zero on all "
                "ranks");
  }
}

void Reducer::recover() {
  if (std::exchange(forward_failed_, false) && !is_open_ && !buckets_.empty()) {
    reset_pass();
  } else if (!is_cut_short()) {
    return;
  }
  end(Role::failed, join_hook_ ? join_hook_() : 0);
}

void Reducer::report_missing(const std::vector<std::string>& masks) const {
  constexpr size_t kMostNames = 20;
  std::string names;
  size_t count = 0;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const std::string ranks = ranks_with(masks, 1 + p, {kMissing, kEarlier});
    if (ranks.empty()) continue;
    if (++count > kMostNames) continue;
    names += (names.empty() ? "" : "; ") + parameters_[p].name + " (rank " + ranks + ")";
  }
  if (count > kMostNames) names += "; and " + std::to_string(count - kMostNames) + " more";
  throw Error("DistributedDataParallel: no gradient for " + names +
              ": these parameters took no part in the loss. Set find_unused_parameters if that is intended");
}

}  // namespace lockstep
