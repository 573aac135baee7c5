// Metrics of a model over a data set, made of sums: memory does not grow with the set (but for spearman()), and ranks add
// theirs.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

/// What every metric has: a value over all samples that it was given, on this rank or on all. One thread at a time.
class MetricBase {
 public:
  /// What value_of() needs of the samples seen. States of different lengths may meet: what is missing at the
  /// end counts as 0.
  using State = std::vector<double>;

  virtual ~MetricBase() = default;
  /// The key under which it is logged, without "eval_".
  virtual std::string name() const = 0;
  /// Returns the value over the samples that this rank has seen. Does not communicate.
  double compute() const { return value_of(state_); }
  /// Returns the value over the samples that all ranks of `group` have seen. Called by all of them; blocks.
  /// All get the same bits.
  double compute(const ProcessGroup& group) const;
  /// Forgets all samples.
  void reset() { state_.clear(); }
  const State& state() const { return state_; }

 protected:
  /// Adds `other` to `into`: elementwise, unless a metric says otherwise.
  virtual void merge(State& into, const State& other) const;
  virtual double value_of(const State& state) const = 0;
  /// compute(group) of several in one exchange.
  static std::vector<double> compute_all(std::span<const MetricBase* const> metrics,
                                         const ProcessGroup& group);
  State state_{};
};

/// A metric of tensors. Derive from it for one of your own: a name, update(), value_of() and, where states do
/// not simply add up, merge().
class Metric : public MetricBase {
 public:
  /// Takes in a batch: what the model gave, and what is right. Throws ValueError that names the metric for
  /// tensors that do not fit together.
  virtual void update(const at::Tensor& outputs, const at::Tensor& labels) = 0;

 private:
  friend std::vector<double> compute(std::span<const std::shared_ptr<Metric>> metrics,
                                     const ProcessGroup& group);
};

/// The values of several metrics in one exchange. Called by all ranks with the same metrics in the same order;
/// blocks.
std::vector<double> compute(std::span<const std::shared_ptr<Metric>> metrics, const ProcessGroup& group);

}  // namespace lockstep
