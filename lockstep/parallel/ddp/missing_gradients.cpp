#include "lockstep/parallel/ddp/missing_gradients.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

/// One element of any dtype: a sum of zeros has no bit set.
bool is_zero(const at::Tensor& element) {
  const auto* bytes = static_cast<const unsigned char*>(element.const_data_ptr());
  return std::all_of(bytes, bytes + element.nbytes(), [](unsigned char byte) { return byte == 0; });
}

}  // namespace

MissingGradients::MissingGradients(ProcessGroup group, bool are_allowed)
    : group_(std::move(group)), are_allowed_(are_allowed), objections_(group_.empty_shared({1}, at::kInt)) {}

void MissingGradients::begin_pass() {
  report_.reset();
  reports_.clear();
  work_.reset();
  agreement_.reset();
  has_agreed_ = false;
}

void MissingGradients::prepare_agreement(const GradientBuckets& buckets, const Pass& pass) {
  const auto& parameters = buckets.parameters();
  objects_ = pass.role != Role::joined &&
             (pass.role != Role::active || std::any_of(parameters.begin(), parameters.end(),
                                                       [](const GradientBuckets::Parameter& parameter) {
                                                         return parameter.is_trainable && !parameter.is_ready;
                                                       }));
  if (agreement_ || has_agreed_ || buckets.buckets().empty()) return;
  if (const at::Tensor& carried = buckets.buckets().back().agreement; carried.defined()) {
    if (objects_) {
      carried.fill_(1);
    } else {
      std::memset(carried.mutable_data_ptr(), 0, carried.nbytes());
    }
  }
}

void MissingGradients::start_agreement(const GradientBuckets& buckets) {
  if (agreement_ || has_agreed_ || buckets.buckets().back().agreement.defined()) return;
  *static_cast<int32_t*>(objections_.mutable_data_ptr()) = objects_ ? 1 : 0;
  agreement_ = group_.all_reduce_async(objections_);
}

bool MissingGradients::agree(const GradientBuckets& buckets) {
  if (buckets.buckets().empty()) return true;
  start_agreement(buckets);
  if (agreement_) std::exchange(agreement_, nullptr)->wait();
  has_agreed_ = true;
  const at::Tensor& carried = buckets.buckets().back().agreement;
  return is_zero(carried.defined() ? carried : objections_);
}

OldGradients MissingGradients::contribute(GradientBuckets& buckets, const Pass& pass) {
  const auto& parameters = buckets.parameters();
  const bool any_waits =
      std::any_of(buckets.buckets().begin(), buckets.buckets().end(),
                  [](const GradientBuckets::Bucket& bucket) { return bucket.pending > 0; });
  if (!any_waits) return {};
  OldGradients kept(parameters.size());
  for (size_t p = 0; p < parameters.size(); ++p) {
    const GradientBuckets::Parameter& parameter = parameters[p];
    if (!parameter.is_trainable || parameter.is_ready) continue;
    buckets.stop_waiting(p);
    if (parameter.is_sparse) continue;
    const at::Tensor& old = parameter.tensor.grad();
    if (old.defined() && pass.role == Role::active) kept[p] = old.clone();
    if (pass.role != Role::active || !old.defined()) {
      parameter.view.zero_();
    } else if (!old.is_alias_of(parameter.view)) {
      parameter.view.copy_(old);
    }
    if (pass.role == Role::active) buckets.kept().add_to(p, parameter.view);
  }
  return kept;
}

void MissingGradients::start_report(const GradientBuckets& buckets, const Pass& pass) {
  const auto& parameters = buckets.parameters();
  report_ = group_.empty_shared({static_cast<int64_t>(report_size(parameters.size()))}, at::kByte);
  auto* const text = reinterpret_cast<char*>(report_.mutable_data_ptr());
  text[0] = static_cast<char>(pass.role);
  for (size_t p = 0; p < parameters.size(); ++p) {
    const GradientBuckets::Parameter& parameter = parameters[p];
    const bool is_there = !parameter.is_trainable || parameter.is_ready;
    const auto seen = is_there             ? GradientSeen::ready
                      : parameter.was_used ? GradientSeen::earlier
                                           : GradientSeen::missing;
    text[1 + p] = static_cast<char>(seen);
  }
  for (int rank = 0; rank < group_.size(); ++rank) reports_.push_back(at::empty_like(report_));
  work_ = group_.all_gather_async(reports_, report_);
}

PassVerdict MissingGradients::exchange_reports(const GradientBuckets& buckets, const Pass& pass) {
  if (!work_) start_report(buckets, pass);
  std::exchange(work_, nullptr)->wait();
  std::vector<std::string_view> reports;
  for (const at::Tensor& report : reports_) {
    reports.emplace_back(static_cast<const char*>(report.const_data_ptr()),
                         static_cast<size_t>(report.numel()));
  }
  return decide(reports, are_allowed_);
}

/// What the ranks' modules have become, once for all ranks that say the same. Called by all; blocks.
std::string MissingGradients::describe_changes() const {
  const std::vector<std::string> all = group_.all_gather_bytes(changes_);
  std::string text;
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty() || std::find(all.begin(), all.begin() + static_cast<ptrdiff_t>(r), all[r]) !=
                              all.begin() + static_cast<ptrdiff_t>(r)) {
      continue;
    }
    std::vector<int> ranks;
    for (size_t other = r; other < all.size(); ++other) {
      if (all[other] == all[r]) ranks.push_back(static_cast<int>(other));
    }
    text += fmt::format("{}{} {}", text.empty() ? "on rank " : "; on rank ", describe_ranks(ranks), all[r]);
  }
  return text;
}

bool MissingGradients::settle(GradientBuckets& buckets, Pass& pass, const OldGradients& old) {
  const PassVerdict verdict = exchange_reports(buckets, pass);
  switch (verdict.outcome) {
    case PassVerdict::Outcome::averaged:
      take_used_averages(buckets, pass, verdict, old);
      return true;
    case PassVerdict::Outcome::refused: {
      if (pass.role == Role::joined) return false;
      std::vector<std::string> names;
      for (const GradientBuckets::Parameter& parameter : buckets.parameters())
        names.push_back(parameter.name);
      throw Error(
          fmt::format("DistributedDataParallel: no gradient for {}: these parameters took no part in the "
                      "loss. Set find_unused_parameters if that is intended",
                      describe_missing(verdict, names)));
    }
    case PassVerdict::Outcome::untouched:
      return false;
    case PassVerdict::Outcome::changed: {
      const std::string changes = describe_changes();
      buckets.drop_gradients();
      if (pass.role == Role::joined) return false;
      throw Error(
          fmt::format("DistributedDataParallel: the module is no longer what was wrapped: {}. So this step's "
                      "gradients could not be averaged and are zero on all ranks. Change a module before "
                      "wrapping it, or wrap it again, on all ranks",
                      changes));
    }
    case PassVerdict::Outcome::failed:
      pass.has_failed = true;
      buckets.drop_gradients();
      if (pass.role == Role::joined || pass.has_been_cut()) return false;
      throw Error(fmt::format(
          "DistributedDataParallel: the forward or backward pass of rank {} ended in an "
          "exception, so this step's gradients could not be averaged and are zero on all ranks{}",
          describe_ranks(verdict.failed_ranks),
          changes_.empty() ? "" : ". Besides, the module here is no longer what was wrapped: " + changes_));
  }
  return false;
}

/// Each parameter that no rank has used keeps its old gradient.
void MissingGradients::take_used_averages(const GradientBuckets& buckets, const Pass& pass,
                                          const PassVerdict& verdict, const OldGradients& old) {
  for (size_t p = 0; p < old.size(); ++p) {
    const GradientBuckets::Parameter& parameter = buckets.parameters()[p];
    if (parameter.is_ready || !parameter.view.defined()) continue;
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (verdict.is_used[p]) {
      buckets.take_average(parameter);
    } else if (pass.role == Role::joined) {
      gradient.reset();
    } else if (old[p].defined() && gradient.is_alias_of(parameter.view)) {
      gradient.copy_(old[p]);
    }
  }
}

}  // namespace lockstep
