// Metrics of models that give numbers.
#pragma once

#include <memory>

#include "lockstep/metrics/metric.h"

namespace lockstep {

/// All of these take outputs and labels of as many elements, whatever their shapes; update() throws ValueError
/// otherwise. Sums are made in double precision. Not a number over no element.

/// "mae": the mean of |output - label|, as scikit-learn's mean_absolute_error.
std::shared_ptr<Metric> mean_absolute_error();
/// "mse": the mean of (output - label)^2, as scikit-learn's mean_squared_error.
std::shared_ptr<Metric> mean_squared_error();
/// "pearson": Pearson's correlation of outputs and labels, as SciPy's pearsonr; not a number where one of them
/// does not vary.
std::shared_ptr<Metric> pearson();

}  // namespace lockstep
