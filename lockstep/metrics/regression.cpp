#include "lockstep/metrics/regression.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::pair<at::Tensor, at::Tensor> check_values(const std::string& metric, const at::Tensor& outputs,
                                               const at::Tensor& labels) {
  if (outputs.numel() != labels.numel()) {
    throw ValueError(fmt::format("the metric {} got {} outputs and {} labels; it takes as many of both",
                                 metric, outputs.numel(), labels.numel()));
  }
  const auto flat = [](const at::Tensor& tensor) {
    return tensor.detach().to(at::kCPU, at::kDouble).reshape({-1}).contiguous();
  };
  return {flat(outputs), flat(labels)};
}

/// State: sum, elements. The value is that of `of_mean`.
class MeanError : public Metric {
 public:
  MeanError(
      std::string name, double (*error)(double), double (*of_mean)(double) = [](double mean) { return mean; })
      : name_(std::move(name)), error_(error), of_mean_(of_mean) {}
  std::string name() const override { return name_; }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const at::NoGradGuard no_grad;
    const auto [found, right] = check_values(name_, outputs, labels);
    double sum = 0;
    for (int64_t i = 0; i < found.numel(); ++i) {
      sum += error_(found.const_data_ptr<double>()[i] - right.const_data_ptr<double>()[i]);
    }
    merge(state_, {sum, static_cast<double>(found.numel())});
  }

 private:
  double value_of(const State& state) const override {
    return state.empty() || state[1] == 0 ? kNone : of_mean_(state[0] / state[1]);
  }
  std::string name_;
  double (*error_)(double);
  double (*of_mean_)(double);
};

double square(double error) { return error * error; }

/// State: elements, their means, the sums of squared deviations from those and of the deviations' products,
/// which can be put together without a loss of digits (Chan, Golub and LeVeque 1979).
class Pearson : public Metric {
 public:
  std::string name() const override { return "pearson"; }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const at::NoGradGuard no_grad;
    const auto [x, y] = check_values(name(), outputs, labels);
    if (x.numel() == 0) return;
    const at::Tensor dx = x - x.mean(), dy = y - y.mean();
    merge(state_, {static_cast<double>(x.numel()), x.mean().item<double>(), y.mean().item<double>(),
                   dx.dot(dx).item<double>(), dy.dot(dy).item<double>(), dx.dot(dy).item<double>()});
  }

 private:
  void merge(State& into, const State& other) const override {
    if (other.empty()) return;
    if (into.empty()) {
      into = other;
      return;
    }
    const double total = into[0] + other[0], share = other[0] / total;
    const double dx = other[1] - into[1], dy = other[2] - into[2];
    const double between = into[0] * share;
    into[3] += other[3] + dx * dx * between;
    into[4] += other[4] + dy * dy * between;
    into[5] += other[5] + dx * dy * between;
    into[1] += dx * share;
    into[2] += dy * share;
    into[0] = total;
  }
  double value_of(const State& state) const override {
    if (state.empty() || state[3] == 0 || state[4] == 0) return kNone;
    return std::clamp(state[5] / (std::sqrt(state[3]) * std::sqrt(state[4])), -1.0, 1.0);
  }
};

/// State: elements, the mean of the labels, the sum of their squared deviations from it, the sum of squared errors.
class R2 : public Metric {
 public:
  std::string name() const override { return "r2"; }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const at::NoGradGuard no_grad;
    const auto [found, right] = check_values(name(), outputs, labels);
    if (found.numel() == 0) return;
    const at::Tensor deviations = right - right.mean(), errors = right - found;
    merge(state_, {static_cast<double>(found.numel()), right.mean().item<double>(),
                   deviations.dot(deviations).item<double>(), errors.dot(errors).item<double>()});
  }

 private:
  void merge(State& into, const State& other) const override {
    if (other.empty()) return;
    if (into.empty()) {
      into = other;
      return;
    }
    const double total = into[0] + other[0], share = other[0] / total, distance = other[1] - into[1];
    into[2] += other[2] + distance * distance * into[0] * share;
    into[1] += distance * share;
    into[3] += other[3];
    into[0] = total;
  }
  double value_of(const State& state) const override {
    if (state.empty() || state[0] < 2) return kNone;
    if (state[2] == 0) return state[3] == 0 ? 1 : 0;
    return 1 - state[3] / state[2];
  }
};

/// Ranks from 1; equal values share the mean of theirs.
std::vector<double> find_ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t first = 0; first < order.size();) {
    size_t end = first + 1;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    for (size_t i = first; i < end; ++i) ranks[order[i]] = static_cast<double>(first + 1 + end) / 2;
    first = end;
  }
  return ranks;
}

/// State: each output, followed by its label, since a rank depends on all values.
class Spearman : public Metric {
 public:
  std::string name() const override { return "spearman"; }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const at::NoGradGuard no_grad;
    const auto [found, right] = check_values(name(), outputs, labels);
    for (int64_t i = 0; i < found.numel(); ++i) {
      state_.push_back(found.const_data_ptr<double>()[i]);
      state_.push_back(right.const_data_ptr<double>()[i]);
    }
  }

 private:
  void merge(State& into, const State& other) const override {
    into.insert(into.end(), other.begin(), other.end());
  }
  double value_of(const State& state) const override {
    std::vector<double> outputs, labels;
    for (size_t i = 0; i + 1 < state.size(); i += 2) {
      if (std::isnan(state[i]) || std::isnan(state[i + 1])) return kNone;
      outputs.push_back(state[i]);
      labels.push_back(state[i + 1]);
    }
    const auto x = find_ranks(outputs), y = find_ranks(labels);
    const double mean = (static_cast<double>(x.size()) + 1) / 2;  // of ranks, with ties too
    double xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      xx += (x[i] - mean) * (x[i] - mean);
      yy += (y[i] - mean) * (y[i] - mean);
      xy += (x[i] - mean) * (y[i] - mean);
    }
    if (xx == 0 || yy == 0) return kNone;
    return std::clamp(xy / (std::sqrt(xx) * std::sqrt(yy)), -1.0, 1.0);
  }
};

}  // namespace

std::shared_ptr<Metric> mean_absolute_error() {
  return std::make_shared<MeanError>("mae", [](double error) { return std::fabs(error); });
}
std::shared_ptr<Metric> mean_squared_error() { return std::make_shared<MeanError>("mse", square); }
std::shared_ptr<Metric> root_mean_squared_error() {
  return std::make_shared<MeanError>("rmse", square, [](double mean) { return std::sqrt(mean); });
}
std::shared_ptr<Metric> r2() { return std::make_shared<R2>(); }
std::shared_ptr<Metric> pearson() { return std::make_shared<Pearson>(); }
std::shared_ptr<Metric> spearman() { return std::make_shared<Spearman>(); }

}  // namespace lockstep
