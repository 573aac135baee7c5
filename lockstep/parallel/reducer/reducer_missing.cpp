// What becomes of parameters without a gradient, of sparse gradients, and of passes that were cut short.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/reducer/reducer.h"

namespace lockstep {
namespace {

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
/// has: its old gradient, or zeros. Returns the old gradients, by parameter, that this overwrites.
std::vector<at::Tensor> Reducer::contribute_missing() {
  std::vector<at::Tensor> kept(parameters_.size());
  if (pass_.next_bucket == buckets_.size()) return kept;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (!parameter.is_trainable || parameter.is_ready) continue;
    --buckets_[parameter.bucket].pending;
    if (parameter.is_sparse) continue;
    const at::Tensor& old = parameter.tensor.grad();
    if (old.defined() && (pass_.role == Role::active || pass_.role == Role::absent)) kept[p] = old.clone();
    if (pass_.role != Role::active || !old.defined()) {
      parameter.view.zero_();
    } else if (!old.is_alias_of(parameter.view)) {
      parameter.view.copy_(old);
    }
    if (pass_.role == Role::active) add_kept(parameter);
  }
  return kept;
}

void Reducer::reduce_sparse() {
  for (Parameter& parameter : parameters_) {
    if (!parameter.is_trainable || !parameter.is_sparse) continue;
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    const at::Tensor held = std::exchange(parameter.held, {});
    const at::Tensor own = held.defined() ? held : gradient;
    const bool is_there = pass_.role == Role::active && own.defined() && own.is_sparse();
    const at::Tensor sum = sum_sparse(group_, is_there ? own : no_rows(parameter.tensor));
    if (held.defined()) continue;  // for the peers alone
    // Rows that no rank used: whatever there was stays as it was.
    if (sum._nnz() > 0 && (pass_.role == Role::active || pass_.role == Role::joined)) {
      gradient = sum.div(pass_.divisor > 0 ? pass_.divisor : group_.size());
    } else if (pass_.role == Role::joined) {
      gradient.reset();
    }
  }
}

void Reducer::start_report() {
  const auto size = static_cast<int64_t>(report_size(parameters_.size()));
  pass_.report = group_.empty_shared({size}, at::kByte);
  auto* const text = reinterpret_cast<char*>(pass_.report.mutable_data_ptr());
  text[0] = static_cast<char>(pass_.role);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Parameter& parameter = parameters_[p];
    const bool is_there = !parameter.is_trainable || parameter.is_ready;
    const auto seen = is_there             ? GradientSeen::ready
                      : parameter.was_used ? GradientSeen::earlier
                                           : GradientSeen::missing;
    text[1 + p] = static_cast<char>(seen);
  }
  for (int rank = 0; rank < group_.size(); ++rank) pass_.reports.push_back(at::empty_like(pass_.report));
  pass_.report_work = group_.all_gather_async(pass_.reports, pass_.report);
}

/// Some rank lacks some gradient. Every rank learns which, and all decide the same. Returns whether the
/// step's gradients are of use.
bool Reducer::settle(const std::vector<at::Tensor>& kept) {
  if (!pass_.report_work) start_report();
  std::exchange(pass_.report_work, nullptr)->wait();
  std::vector<std::string_view> reports;
  for (const at::Tensor& report : pass_.reports) {
    reports.emplace_back(static_cast<const char*>(report.const_data_ptr()),
                         static_cast<size_t>(report.numel()));
  }
  const PassVerdict verdict = decide(reports, allows_missing());
  switch (verdict.outcome) {
    case PassVerdict::Outcome::averaged:
      keep_or_take_averages(verdict, kept);
      return true;
    case PassVerdict::Outcome::refused:
      if (pass_.role == Role::joined) return false;
      throw Error(
          "DistributedDataParallel: no gradient for " + describe_missing(verdict, names()) +
          ": these parameters took no part in the loss. Set find_unused_parameters if that is intended");
    case PassVerdict::Outcome::untouched:
      for (size_t p = 0; p < parameters_.size(); ++p) {
        at::Tensor& gradient = parameters_[p].tensor.mutable_grad();
        if (kept[p].defined() && gradient.is_alias_of(parameters_[p].view)) gradient.copy_(kept[p]);
      }
      return false;
    case PassVerdict::Outcome::failed:
      drop_gradients();
      if (pass_.role != Role::active) return false;
      throw Error(
          "DistributedDataParallel: the forward or backward pass of rank " +
          describe_ranks(verdict.failed_ranks) +
          " ended in an exception, so this step's gradients could not be averaged and are zero on all "
          "ranks");
  }
  return false;
}

/// Each parameter that no rank has used keeps its old gradient.
void Reducer::keep_or_take_averages(const PassVerdict& verdict, const std::vector<at::Tensor>& kept) {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Parameter& parameter = parameters_[p];
    if (parameter.is_ready || !parameter.view.defined()) continue;
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (verdict.is_used[p]) {
      take_average(parameter);
    } else if (pass_.role == Role::joined) {
      gradient.reset();
    } else if (kept[p].defined() && gradient.is_alias_of(parameter.view)) {
      gradient.copy_(kept[p]);
    }
  }
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

/// Nobody's gradients are of use: they become zero everywhere.
void Reducer::drop_gradients() {
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
  if (order_state_ == Order::own) order_.clear();
}

void Reducer::recover() {
  if (pass_.state == PassState::absent) {
    if (buckets_.empty()) return take(PassEvent::recovery);
    reset_pass();
    pass_.role = Role::absent;
  } else if (is_torn()) {
    pass_.state = PassState::torn;
    // After the last gradient nothing is missing.
    if (pass_.next_bucket < buckets_.size()) pass_.role = Role::failed;
  } else {
    return;
  }
  end(join_hook_ ? join_hook_() : 0);
}

std::vector<std::string> Reducer::names() const {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) names.push_back(parameter.name);
  return names;
}

}  // namespace lockstep
