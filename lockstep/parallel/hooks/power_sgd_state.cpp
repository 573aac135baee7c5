#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/parallel/hooks/power_sgd_hook.h"

namespace lockstep {
namespace {

/// Calls `visit(name, value)` for every number of a state.
template <class Options, class Visit>
void visit_options(Options& options, const Visit& visit) {
  visit("matrix_approximation_rank", options.matrix_approximation_rank);
  visit("start_powerSGD_iter", options.start_powerSGD_iter);
  visit("min_compression_rate", options.min_compression_rate);
  visit("use_error_feedback", options.use_error_feedback);
  visit("warm_start", options.warm_start);
  visit("orthogonalization_epsilon", options.orthogonalization_epsilon);
  visit("random_seed", options.random_seed);
  visit("compression_stats_logging_frequency", options.compression_stats_logging_frequency);
  visit("batch_tensors_with_same_shape", options.batch_tensors_with_same_shape);
}

const at::Tensor& entry(const PowerSGDState::StateDict& state, const std::string& name) {
  const auto it = state.find(name);
  if (it == state.end()) {
    throw ValueError(
        fmt::format("PowerSGDState: the saved state has no \"{}\"; give what state_dict() returned", name));
  }
  return it->second;
}

}  // namespace

PowerSGDState::PowerSGDState(std::optional<ProcessGroup> group, PowerSGDOptions given)
    : PowerSGDValues(std::move(group), given) {
  if ((options.use_error_feedback || options.warm_start) && options.start_powerSGD_iter <= 1) {
    throw ValueError(
        fmt::format("PowerSGDState: start_powerSGD_iter must be greater than 1 with use_error_feedback or "
                    "warm_start, not {}: buckets change after the first pass",
                    options.start_powerSGD_iter));
  }
  if (options.matrix_approximation_rank < 1) {
    throw ValueError(fmt::format("PowerSGDState: matrix_approximation_rank must be at least 1, not {}",
                                 options.matrix_approximation_rank));
  }
}

PowerSGDState::CompressionStats PowerSGDState::compression_stats() const {
  CompressionStats stats{0, total_numel_before_compression, total_numel_after_compression};
  if (total_numel_after_compression > 0) {
    stats.compress_rate = static_cast<double>(total_numel_before_compression) /
                          static_cast<double>(total_numel_after_compression);
  }
  return stats;
}

/// numpy.random.RandomState(seed).randint(1_000_000_000): Python and C++ start from the same matrices.
int64_t PowerSGDState::next_seed() {
  constexpr uint32_t kLargest = 999'999'999, kMask = (1U << 30) - 1;
  while (true) {
    ++draws_;
    const uint32_t value = static_cast<uint32_t>(random_()) & kMask;
    if (value <= kLargest) return value;
  }
}

void PowerSGDState::keep_for_step() {
  if (before_step_ || detail::StepUnderWay::current() == nullptr) return;
  before_step_ = std::make_unique<PowerSGDValues>(*this);
}

void PowerSGDState::fail_step() {
  if (before_step_) PowerSGDValues::operator=(*std::exchange(before_step_, nullptr));
}

void PowerSGDState::forget(const GradBucket& bucket) {
  std::vector<std::string> names(bucket.parameter_names().begin(), bucket.parameter_names().end());
  names.push_back(detail::joined_names(bucket));
  for (const std::string& name : names) {
    errors.erase(name);
    ps.erase(name);
    qs.erase(name);
  }
}

std::string detail::joined_names(const GradBucket& bucket) {
  std::string joined;
  for (const std::string_view name : bucket.parameter_names()) {
    joined += (joined.empty() ? "" : "+") + std::string(name);
  }
  return joined;
}

void PowerSGDState::increase_iter(const GradBucket& bucket) {
  if (!bucket.is_last()) return;
  if (++iter == options.start_powerSGD_iter) {
    log::info(fmt::format("PowerSGD starts after {} iterations", int64_t{iter}));
  }
}

void PowerSGDState::report(const GradBucket& bucket) {
  if (!bucket.is_last() || iter < next_stats_report_) return;
  const CompressionStats stats = compression_stats();
  log::info(fmt::format("PowerSGD: iteration {}, {} elements compressed to {}, rate {:f}", int64_t{iter},
                        stats.numel_before_compression, stats.numel_after_compression, stats.compress_rate));
  next_stats_report_ = iter + std::max<int64_t>(1, options.compression_stats_logging_frequency);
}

PowerSGDState::StateDict PowerSGDState::state_dict() const {
  StateDict state;
  const auto put = [&](const std::string& name, auto value) {
    state[name] = at::full({1}, static_cast<double>(value), at::kDouble);
  };
  visit_options(options, put);
  put("iter", iter);
  put("draws", draws_);
  put("total_numel_before_compression", total_numel_before_compression);
  put("total_numel_after_compression", total_numel_after_compression);
  for (const auto& [name, tensors] : {std::pair{"error.", &errors}, {"p.", &ps}, {"q.", &qs}}) {
    for (const auto& [parameter, tensor] : *tensors) state[name + parameter] = tensor.clone();
  }
  return state;
}

void PowerSGDState::load_state_dict(const StateDict& state) {
  PowerSGDOptions loaded;
  const auto get = [&](const std::string& name, auto& value) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(entry(state, name).item<double>());
  };
  visit_options(loaded, get);
  int64_t passes = 0, draws = 0, before = 0, after = 0;
  get("iter", passes);
  get("draws", draws);
  get("total_numel_before_compression", before);
  get("total_numel_after_compression", after);
  options = loaded;
  iter = next_stats_report_ = passes;
  total_numel_before_compression = before;
  total_numel_after_compression = after;
  random_.seed(options.random_seed);
  random_.discard(static_cast<unsigned long long>(draws));
  draws_ = draws;
  for (const auto& [prefix, tensors] :
       {std::pair{std::string("error."), &errors}, {"p.", &ps}, {"q.", &qs}}) {
    tensors->clear();
    for (const auto& [name, tensor] : state) {
      if (name.compare(0, prefix.size(), prefix) != 0) continue;
      (*tensors)[name.substr(prefix.size())] = tensor.clone();
    }
  }
}

}  // namespace lockstep
