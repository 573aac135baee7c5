// Whether the metric that a training follows is one that it measures.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/metrics/metric.h"
#include "lockstep/trainer/training_arguments.h"

namespace lockstep {

/// Whether a training needs metric_for_best_model: load_best_model_at_end, save_strategy best and reduce_lr_on_plateau follow it.
bool needs_best_metric(const TrainingArguments& arguments);

/// Whether a training keeps the checkpoint of its best model, whatever save_total_limit is: load_best_model_at_end, save_strategy
/// best.
bool keeps_best_model(const TrainingArguments& arguments);

/// Throws ValueError that lists the metrics if `arguments` need one, and evaluate, that an evaluation with these `metrics` will not give. A
/// Trainer without compute_metrics calls it itself; a program that writes files before it makes one calls it before. Pure.
void check_best_metric(const TrainingArguments& arguments,
                       const std::vector<std::shared_ptr<Metric>>& metrics);

}  // namespace lockstep
