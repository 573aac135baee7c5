#include "lockstep/trainer/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/all_ranks.h"
#include "lockstep/comm/objects.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/optim/autocast.h"
#include "lockstep/tracking/progress/progress_bar.h"
#include "lockstep/trainer/best_metric.h"
#include "lockstep/trainer/ema_scope.h"
#include "lockstep/trainer/gather_rows.h"
#include "lockstep/trainer/output/summary.h"

namespace lockstep {
namespace {

// a / b, rounded up.
int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

at::Tensor in_full_precision(const at::Tensor& outputs) {
  const bool is_low = outputs.scalar_type() == at::kBFloat16 || outputs.scalar_type() == at::kHalf;
  return (is_low ? outputs.to(at::kFloat) : outputs).contiguous();
}

}  // namespace

struct Evaluator::Share {
  double loss_sum = 0, count = 0;  // with labels, of one rank
  std::vector<NumberedRows> outputs{}, labels{};
};

struct Evaluator::Found {
  bool has_labels = false;
  double loss = 0;                // (the sum of all losses) / (the sum of all counts)
  std::vector<double> metrics{};  // in the order of Options::metrics
  Metrics computed{};             // what compute_metrics gave
  at::Tensor outputs{}, labels{};
};

int64_t evaluation_size(int64_t size, int world_size, const TrainingArguments& arguments) {
  const int64_t batch = arguments.per_device_eval_batch_size * world_size;
  const int64_t batches = ceil_divide(size, batch);
  int64_t wanted = limited_batches(arguments.limit_eval_batches, batches);
  for (const int64_t limit : {arguments.fast_dev_run, arguments.overfit_batches}) {
    if (limit > 0) wanted = std::min(wanted, limit);
  }
  return std::min(size, wanted * batch);
}

bool Evaluator::gathers(const EvaluationRequest& request) const {
  return request.keep_outputs || static_cast<bool>(options_.compute_metrics);
}

Loss Evaluator::run(const Batch& batch) {
  const AutocastGuard autocast(options_.arguments.bf16);
  if (options_.engine.has_forward() && detail::label_name(batch).empty())
    return {.sum = {}, .outputs = options_.engine.forward(batch)};
  return options_.engine.compute_loss(batch);
}

void Evaluator::add_batch(Loss loss, const std::vector<int64_t>& numbers, bool gathers, Share& share) {
  const auto& metrics = options_.metrics;
  const bool needs_outputs = gathers || !metrics.empty();
  if (needs_outputs && !loss.outputs.defined()) {
    throw ValueError(
        fmt::format("compute_loss gave no outputs; {} needs them: return Loss{{.sum, .count, .outputs, "
                    ".labels}}",
                    !metrics.empty()           ? "the metric " + metrics[0]->name()
                    : options_.compute_metrics ? "compute_metrics"
                                               : "predict()"));
  }
  if (loss.outputs.defined()) loss.outputs = in_full_precision(loss.outputs);
  if (loss.sum.defined()) {
    share.loss_sum += loss.sum.item<double>();
    share.count += loss.count;
    for (const auto& metric : metrics) {
      if (!loss.labels.defined()) {
        throw ValueError(
            fmt::format("compute_loss gave no labels; the metric {} needs them", metric->name()));
      }
      metric->update(loss.outputs, loss.labels);
    }
  }
  if (!gathers) return;
  const auto check_rows = [&](const char* what, const at::Tensor& rows) {
    const auto samples = static_cast<int64_t>(numbers.size());
    if (rows.dim() > 0 && rows.size(0) == samples) return;
    throw ValueError(
        fmt::format("compute_loss gave {} of the shape {} for {} samples; predict() and compute_metrics need "
                    "[samples, ...]",
                    what, c10::str(rows.sizes()), samples));
  };
  check_rows("outputs", loss.outputs);
  if (loss.labels.defined()) check_rows("labels", loss.labels);
  share.outputs.push_back({.numbers = numbers, .rows = loss.outputs});
  if (loss.labels.defined()) share.labels.push_back({.numbers = numbers, .rows = loss.labels});
}

void Evaluator::run_share(const Dataset& dataset, std::vector<int64_t> indices,
                          const std::function<void()>& on_batch, bool gathers, Share& share) {
  DataLoader loader(dataset, std::move(indices),
                    {.batch_size = options_.arguments.per_device_eval_batch_size,
                     .num_workers = options_.arguments.dataloader_num_workers,
                     .prefetch_factor = options_.arguments.dataloader_prefetch_factor});
  const at::NoGradGuard no_grad;
  for (const Batch& batch : loader) {
    add_batch(run(batch), loader.samples(), gathers, share);
    on_batch();
  }
}

Metrics Evaluator::compute_on_rank_0(const Found& found) {
  nlohmann::json computed = nlohmann::json::object();
  on_all_ranks(options_.group, [&] {
    if (options_.group.rank() == 0) computed = options_.compute_metrics(found.outputs, found.labels);
  });
  computed = broadcast_object(options_.group, computed);
  Metrics metrics;
  for (const auto& [name, value] : computed.items()) metrics[name] = value.get<double>();
  return metrics;
}

// A forward pass leaves each rank the statistics of its own batch. What is evaluated is what is saved, rank 0's model; in
// training the next forward would copy its buffers too.
void Evaluator::share_buffers() {
  const ProcessGroup& group = options_.group;
  if (group.size() == 1 || !options_.arguments.ddp_broadcast_buffers ||
      options_.engine.logical_ranks() != nullptr)
    return;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& buffer : options_.engine.module().buffers()) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    const at::Tensor values = buffer.detach().contiguous();
    group.broadcast(values, {.src = 0});
    if (!values.is_alias_of(buffer)) buffer.copy_(values);
  }
}

Evaluator::Found Evaluator::run_all(const Dataset& dataset, int64_t size, const EvaluationRequest& request) {
  const auto& [engine, arguments, group, metrics, compute_metrics, shows_bar, terminal] = options_;
  const int ranks = detail::data_ranks(engine, group);
  const int64_t batches_of_a_rank =
      ceil_divide(ceil_divide(size, ranks), arguments.per_device_eval_batch_size);
  ProgressBar bar({.total = batches_of_a_rank * (ranks / group.size()),
                   .label = request.prefix,
                   .unit = "batches",
                   .enabled = shows_bar,
                   .leave = false,
                   .terminal = terminal});
  if (dataset.size < 1) throw ValueError("the dataset to evaluate is empty; give at least one sample");
  const auto order = by_length(dataset, size);
  const bool keeps = gathers(request);
  Share share;
  std::vector<double> loss_sums, counts;  // of the ranks of this process
  for (const auto& metric : metrics) metric->reset();
  for (const int rank : detail::own_data_ranks(engine, group)) {
    share.loss_sum = share.count = 0;
    auto indices = evaluation_indices(size, ranks, rank);
    for (auto& index : indices) index = order[static_cast<size_t>(index)];
    run_share(
        dataset, std::move(indices), [&] { bar.advance(); }, keeps, share);
    loss_sums.push_back(share.loss_sum);
    counts.push_back(share.count);
  }

  const auto sums = at::tensor(
      {tree_sum(loss_sums), tree_sum(counts), static_cast<double>(share.labels.size())}, at::kDouble);
  detail::all_reduce_data_ranks(engine, group, sums);
  Found found{.has_labels = sums[1].item<double>() > 0};
  if (found.has_labels) {
    found.loss = sums[0].item<double>() / sums[1].item<double>();
    found.metrics = compute(metrics, group);
  }
  if (keeps) {
    found.outputs = gather_rows(share.outputs, size, group);
    if (sums[2].item<double>() > 0) found.labels = gather_rows(share.labels, size, group);
  }
  if (compute_metrics && found.has_labels) found.computed = compute_on_rank_0(found);
  return found;
}

void Evaluator::give_names(const Found& found, const std::string& prefix, Evaluation& evaluation) {
  Metrics& metrics = evaluation.metrics;
  std::string& text = evaluation.text;
  metrics[prefix + "_loss"] = found.loss;
  text = fmt::format("loss {:.4f}", found.loss);
  for (size_t m = 0; m < options_.metrics.size(); ++m) {
    const std::string name = options_.metrics[m]->name();
    metrics[fmt::format("{}_{}", prefix, name)] = found.metrics[m];
    text += fmt::format("  {} {:.4f}", name, found.metrics[m]);
  }
  for (const auto& [name, value] : found.computed) {
    metrics[name.starts_with(prefix + "_") ? name : fmt::format("{}_{}", prefix, name)] = value;
    text += fmt::format("  {} {:.4f}", name, value);
  }
  const int64_t batch =
      options_.arguments.per_device_eval_batch_size * detail::data_ranks(options_.engine, options_.group);
  add_speed(metrics, prefix, evaluation.runtime, static_cast<double>(evaluation.size),
            static_cast<double>(ceil_divide(evaluation.size, batch)));
}

Evaluation Evaluator::evaluate(const Dataset& dataset, const EvaluationRequest& request) {
  const double begin = monotonic_seconds();
  const int64_t size =
      evaluation_size(dataset.size, detail::data_ranks(options_.engine, options_.group), options_.arguments);
  options_.engine.module().eval();
  Found found;
  {
    const auto averaged = ema_scope(request.average);
    share_buffers();
    found = run_all(dataset, size, request);
  }
  Evaluation evaluation{.has_labels = found.has_labels,
                        .size = size,
                        .runtime = monotonic_seconds() - begin,
                        .outputs = found.outputs,
                        .labels = found.labels};
  if (found.has_labels) give_names(found, request.prefix, evaluation);
  return evaluation;
}

void Evaluator::check(const Dataset& dataset) {
  const auto& metrics = options_.metrics;
  if (!metrics.empty()) {
    options_.engine.module().eval();
    const at::NoGradGuard no_grad;
    Share share;
    add_batch(run(dataset.collate({0})), {0}, false, share);
    for (const auto& metric : metrics) metric->reset();
  }
  // What compute_metrics gives is known after the first evaluation.
  if (!options_.compute_metrics) check_best_metric(options_.arguments, metrics);
}

}  // namespace lockstep
