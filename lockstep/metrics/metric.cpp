#include "lockstep/metrics/metric.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void append(std::string& bytes, const void* from, size_t count) {
  bytes.append(static_cast<const char*>(from), count);
}

std::string pack(std::span<const MetricBase* const> metrics) {
  std::string bytes;
  for (const MetricBase* metric : metrics) {
    const uint64_t length = metric->state().size();
    append(bytes, &length, sizeof length);
    append(bytes, metric->state().data(), length * sizeof(double));
  }
  return bytes;
}

/// The next state of `bytes`, which gets shorter by it.
MetricBase::State unpack(std::string_view& bytes) {
  const auto take = [&](void* to, size_t count) {
    if (bytes.size() < count) throw ValueError("the ranks compute different metrics; give all the same list");
    std::memcpy(to, bytes.data(), count);
    bytes.remove_prefix(count);
  };
  uint64_t length = 0;
  take(&length, sizeof length);
  MetricBase::State state(std::min<size_t>(length, bytes.size() / sizeof(double)));
  take(state.data(), length * sizeof(double));
  return state;
}

}  // namespace

void MetricBase::merge(State& into, const State& other) const {
  into.resize(std::max(into.size(), other.size()));
  for (size_t i = 0; i < other.size(); ++i) into[i] += other[i];
}

double MetricBase::compute(const ProcessGroup& group) const {
  const MetricBase* const self = this;
  return compute_all(std::span(&self, 1), group).front();
}

std::vector<double> MetricBase::compute_all(std::span<const MetricBase* const> metrics,
                                            const ProcessGroup& group) {
  const std::vector<std::string> packed = group.all_gather_bytes(pack(metrics));
  std::vector<State> totals(metrics.size());
  for (std::string_view bytes : packed) {
    for (size_t m = 0; m < metrics.size(); ++m) metrics[m]->merge(totals[m], unpack(bytes));
  }
  std::vector<double> values;
  for (size_t m = 0; m < metrics.size(); ++m) values.push_back(metrics[m]->value_of(totals[m]));
  return values;
}

std::vector<double> compute(std::span<const std::shared_ptr<Metric>> metrics, const ProcessGroup& group) {
  std::vector<const MetricBase*> all;
  for (const auto& metric : metrics) all.push_back(metric.get());
  return Metric::compute_all(all, group);
}

}  // namespace lockstep
