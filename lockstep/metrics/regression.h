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
/// "rmse": the square root of "mse" over all samples, as scikit-learn's root_mean_squared_error.
std::shared_ptr<Metric> root_mean_squared_error();
/// "r2": the coefficient of determination, as scikit-learn's r2_score: 1 for no error; where the labels do not vary, 1
/// without an error and 0 otherwise; not a number over fewer than two elements.
std::shared_ptr<Metric> r2();
/// "pearson": Pearson's correlation of outputs and labels, as SciPy's pearsonr; not a number where one of them
/// does not vary.
std::shared_ptr<Metric> pearson();
/// "spearman": the correlation of ranks, as SciPy's spearmanr: equal values share their mean rank; not a number where
/// outputs or labels do not vary, or one of them is not a number. Unlike the others it holds every output and label in
/// memory, and compute(group) sends those of all ranks to all: 16 bytes a sample.
std::shared_ptr<Metric> spearman();

}  // namespace lockstep
