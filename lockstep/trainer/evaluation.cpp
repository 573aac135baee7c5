#include "lockstep/trainer/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/comm/objects.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/optim/autocast.h"
#include "lockstep/trainer/gather_rows.h"

namespace lockstep {
namespace {

// Longest first, so that batches need little padding and the ranks get equal work.
std::vector<int64_t> by_length(const Dataset& dataset, int64_t size) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  if (!dataset.lengths.empty()) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return dataset.lengths[static_cast<size_t>(a)] > dataset.lengths[static_cast<size_t>(b)];
    });
  }
  return order;
}

bool gathers(const EvaluationOptions& options) {
  return options.keep_outputs || static_cast<bool>(options.compute_metrics);
}

// What one rank finds in its share.
struct Share {
  double loss_sum = 0, count = 0;  // with labels
  std::vector<NumberedRows> outputs{}, labels{};
};

at::Tensor in_full_precision(const at::Tensor& outputs) {
  const bool is_low = outputs.scalar_type() == at::kBFloat16 || outputs.scalar_type() == at::kHalf;
  return (is_low ? outputs.to(at::kFloat) : outputs).contiguous();
}

Loss run(detail::StepEngine& engine, const Batch& batch, bool bf16) {
  const AutocastGuard autocast(bf16);
  if (engine.has_forward() && detail::label_name(batch).empty())
    return {.sum = {}, .outputs = engine.forward(batch)};
  return engine.compute_loss(batch);
}

void add_batch(Loss loss, const std::vector<int64_t>& numbers, const EvaluationOptions& options,
               Share& share) {
  const bool needs_outputs = gathers(options) || !options.metrics.empty();
  if (needs_outputs && !loss.outputs.defined()) {
    throw ValueError(
        fmt::format("compute_loss gave no outputs; {} needs them: return Loss{{.sum, .count, .outputs, "
                    ".labels}}",
                    !options.metrics.empty()  ? "the metric " + options.metrics[0]->name()
                    : options.compute_metrics ? "compute_metrics"
                                              : "predict()"));
  }
  if (loss.outputs.defined()) loss.outputs = in_full_precision(loss.outputs);
  if (loss.sum.defined()) {
    share.loss_sum += loss.sum.item<double>();
    share.count += loss.count;
    for (const auto& metric : options.metrics) {
      if (!loss.labels.defined()) {
        throw ValueError(
            fmt::format("compute_loss gave no labels; the metric {} needs them", metric->name()));
      }
      metric->update(loss.outputs, loss.labels);
    }
  }
  if (!gathers(options)) return;
  share.outputs.push_back({.numbers = numbers, .rows = loss.outputs});
  if (loss.labels.defined()) share.labels.push_back({.numbers = numbers, .rows = loss.labels});
}

void run_share(const Dataset& dataset, std::vector<int64_t> indices, detail::StepEngine& engine,
               const TrainingArguments& arguments, const EvaluationOptions& options, Share& share) {
  using Numbered = std::pair<std::vector<int64_t>, Batch>;
  Loader<Numbered> loader(
      std::move(indices),
      [&](const std::vector<int64_t>& numbers) { return Numbered(numbers, dataset.collate(numbers)); },
      {.batch_size = arguments.per_device_eval_batch_size,
       .num_workers = arguments.dataloader_num_workers,
       .prefetch_factor = arguments.dataloader_prefetch_factor});
  const at::NoGradGuard no_grad;
  while (const auto numbered = loader.next()) {
    add_batch(run(engine, numbered->second, arguments.bf16), numbered->first, options, share);
    if (options.on_batch) options.on_batch();
  }
}

Metrics compute_on_rank_0(const EvaluationOptions& options, const EvaluationResult& result,
                          const ProcessGroup& group) {
  nlohmann::json found = nlohmann::json::object();
  on_all_ranks(group, [&] {
    if (group.rank() == 0) found = options.compute_metrics(result.outputs, result.labels);
  });
  found = broadcast_object(group, found);
  Metrics metrics;
  for (const auto& [name, value] : found.items()) metrics[name] = value.get<double>();
  return metrics;
}

}  // namespace

int64_t evaluation_size(int64_t size, int world_size, const TrainingArguments& arguments) {
  const int64_t batch = arguments.per_device_eval_batch_size * world_size;
  const int64_t batches = (size + batch - 1) / batch;
  int64_t wanted = limited_batches(arguments.limit_eval_batches, batches);
  for (const int64_t limit : {arguments.fast_dev_run, arguments.overfit_batches}) {
    if (limit > 0) wanted = std::min(wanted, limit);
  }
  return std::min(size, wanted * batch);
}

EvaluationResult evaluate_model(const Dataset& dataset, detail::StepEngine& engine,
                                const TrainingArguments& arguments, const ProcessGroup& group,
                                const EvaluationOptions& options) {
  if (dataset.size < 1) throw ValueError("the dataset to evaluate is empty; give at least one sample");
  const auto order = by_length(dataset, options.size);
  auto* const logical = engine.logical_ranks();
  const std::vector<int> own = logical != nullptr ? logical->own() : std::vector<int>{group.rank()};
  const int ranks = logical != nullptr ? logical->size() : group.size();
  Share share;
  std::vector<double> loss_sums, counts;  // of the ranks of this process
  for (const auto& metric : options.metrics) metric->reset();
  for (const int rank : own) {
    share.loss_sum = share.count = 0;
    auto indices = evaluation_indices(options.size, ranks, rank);
    for (auto& index : indices) index = order[static_cast<size_t>(index)];
    run_share(dataset, std::move(indices), engine, arguments, options, share);
    loss_sums.push_back(share.loss_sum);
    counts.push_back(share.count);
  }

  const auto sums = at::tensor(
      {tree_sum(loss_sums), tree_sum(counts), static_cast<double>(share.labels.size())}, at::kDouble);
  if (logical != nullptr) {
    logical->all_reduce(sums);
  } else {
    group.all_reduce(sums);
  }
  EvaluationResult result{.has_labels = sums[1].item<double>() > 0};
  if (result.has_labels) {
    result.loss = sums[0].item<double>() / sums[1].item<double>();
    result.metrics = compute(options.metrics, group);
  }
  if (gathers(options)) {
    result.outputs = gather_rows(share.outputs, options.size, group);
    if (sums[2].item<double>() > 0) result.labels = gather_rows(share.labels, options.size, group);
  }
  if (options.compute_metrics && result.has_labels)
    result.computed = compute_on_rank_0(options, result, group);
  return result;
}

void try_evaluation(const Dataset& dataset, detail::StepEngine& engine, const TrainingArguments& arguments,
                    std::span<const std::shared_ptr<Metric>> metrics) {
  const at::NoGradGuard no_grad;
  Share share;
  add_batch(run(engine, dataset.collate({0}), arguments.bf16), {0}, {.size = 1, .metrics = metrics}, share);
  for (const auto& metric : metrics) metric->reset();
}

}  // namespace lockstep
