#include "lockstep/zoo/tasks/class_metrics.h"

#include "lockstep/metrics/classification.h"

namespace lockstep::tasks {

std::vector<std::shared_ptr<Metric>> classification_metrics(int64_t classes) {
  const char* const average = classes == 2 ? "binary" : "macro";
  return {accuracy(), precision({.average = average}), recall({.average = average}), f1({.average = average}),
          f1({.average = "macro", .name = "macro_f1"})};
}

}  // namespace lockstep::tasks
