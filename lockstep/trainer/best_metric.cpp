#include "lockstep/trainer/best_metric.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

bool needs_best_metric(const TrainingArguments& arguments) {
  return keeps_best_model(arguments) || arguments.reduces_lr_on_plateau();
}

bool keeps_best_model(const TrainingArguments& arguments) {
  return arguments.load_best_model_at_end || arguments.save_strategy == SaveStrategy::BEST;
}

void check_best_metric(const TrainingArguments& arguments,
                       const std::vector<std::shared_ptr<Metric>>& metrics) {
  if (!arguments.evaluates() || !needs_best_metric(arguments)) return;
  const std::string wanted = arguments.best_metric();
  // An evaluation measures its speed too; nobody looks for that here.
  if (wanted == "eval_runtime" || wanted.ends_with("_per_second")) return;
  std::vector<std::string> names{"eval_loss"};
  for (const auto& metric : metrics) names.push_back("eval_" + metric->name());
  std::sort(names.begin(), names.end());
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return;
  throw ValueError(fmt::format("metric_for_best_model is {}, which the evaluation does not give; it gives {}",
                               wanted, fmt::join(names, ", ")));
}

}  // namespace lockstep
