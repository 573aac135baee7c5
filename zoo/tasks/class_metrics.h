// What recipes that classify measure.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/metrics/metric.h"

namespace lockstep::tasks {

/// "accuracy", "precision", "recall", "f1" and "macro_f1". With two classes precision, recall and f1 are those of the class 1,
/// with more they are means over the classes; macro_f1 always is.
std::vector<std::shared_ptr<Metric>> classification_metrics(int64_t classes);

}  // namespace lockstep::tasks
