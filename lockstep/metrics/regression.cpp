#include "lockstep/metrics/regression.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::pair<at::Tensor, at::Tensor> values_of(const std::string& metric, const at::Tensor& outputs,
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

/// State: sum, elements.
class MeanError : public Metric {
 public:
  MeanError(std::string name, double (*error)(double)) : name_(std::move(name)), error_(error) {}
  std::string name() const override { return name_; }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const at::NoGradGuard no_grad;
    const auto [found, right] = values_of(name_, outputs, labels);
    double sum = 0;
    for (int64_t i = 0; i < found.numel(); ++i) {
      sum += error_(found.const_data_ptr<double>()[i] - right.const_data_ptr<double>()[i]);
    }
    merge(state_, {sum, static_cast<double>(found.numel())});
  }

 private:
  double value_of(const State& state) const override {
    return state.empty() || state[1] == 0 ? kNone : state[0] / state[1];
  }
  std::string name_;
  double (*error_)(double);
};

/// State: elements, their means, the sums of squared deviations from those and of the deviations' products,
/// which can be put together without a loss of digits (Chan, Golub and LeVeque 1979).
class Pearson : public Metric {
 public:
  std::string name() const override { return "pearson"; }
  void update(const at::Tensor& outputs, const at::Tensor& labels) override {
    const at::NoGradGuard no_grad;
    const auto [x, y] = values_of(name(), outputs, labels);
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

}  // namespace

std::shared_ptr<Metric> mean_absolute_error() {
  return std::make_shared<MeanError>("mae", [](double error) { return std::fabs(error); });
}
std::shared_ptr<Metric> mean_squared_error() {
  return std::make_shared<MeanError>("mse", [](double error) { return error * error; });
}
std::shared_ptr<Metric> pearson() { return std::make_shared<Pearson>(); }

}  // namespace lockstep
