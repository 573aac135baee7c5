#include "lockstep/trainer/evaluation.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/optim/autocast.h"

namespace lockstep {
namespace {

// Longest first, so that batches need little padding and the ranks get equal work.
std::vector<int64_t> by_length(const Dataset& dataset) {
  std::vector<int64_t> order(static_cast<size_t>(dataset.size));
  std::iota(order.begin(), order.end(), 0);
  if (!dataset.lengths.empty()) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return dataset.lengths[static_cast<size_t>(a)] > dataset.lengths[static_cast<size_t>(b)];
    });
  }
  return order;
}

// What one rank finds in its share.
struct Share {
  double loss_sum = 0, samples = 0;  // with labels
  std::string rows{};                // of each sample its number and its logits
};

void add_batch(const at::Tensor& logits, const std::vector<int64_t>& indices, const Batch& batch,
               std::span<const std::shared_ptr<Metric>> metrics, bool keep_logits, Share& share) {
  if (batch.labels.defined()) {
    share.loss_sum += at::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::Sum).item<double>();
    share.samples += static_cast<double>(batch.labels.numel());
    for (const auto& metric : metrics) metric->update(logits, batch.labels);
  }
  if (!keep_logits) return;
  const auto* row = static_cast<const char*>(logits.const_data_ptr());
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(logits.size(1));
  for (const int64_t index : indices) {
    share.rows.append(reinterpret_cast<const char*>(&index), sizeof(index));
    share.rows.append(row, row_bytes);
    row += row_bytes;
  }
}

at::Tensor gather_logits(const std::string& rows, int64_t size, int64_t num_labels,
                         const ProcessGroup& group) {
  const auto logits = at::empty({size, num_labels}, at::kFloat);
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(num_labels);
  for (const auto& part : group.all_gather_bytes(rows)) {
    for (size_t at = 0; at < part.size(); at += sizeof(int64_t) + row_bytes) {
      int64_t index = 0;
      std::memcpy(&index, part.data() + at, sizeof(index));
      std::memcpy(logits.mutable_data_ptr<float>() + index * num_labels, part.data() + at + sizeof(index),
                  row_bytes);
    }
  }
  return logits;
}

}  // namespace

EvaluationResult evaluate_classifier(const Dataset& dataset, const Forward& forward,
                                     const TrainingArguments& arguments, int64_t num_labels,
                                     std::span<const std::shared_ptr<Metric>> metrics,
                                     const ProcessGroup& group, bool keep_logits) {
  if (dataset.size < 1) throw ValueError("the dataset to evaluate is empty; give at least one sample");
  const auto order = by_length(dataset);
  auto indices = evaluation_indices(dataset.size, group.size(), group.rank());
  for (auto& index : indices) index = order[static_cast<size_t>(index)];

  using Numbered = std::pair<std::vector<int64_t>, Batch>;
  Loader<Numbered> loader(
      indices,
      [&](const std::vector<int64_t>& numbers) { return Numbered(numbers, dataset.collate(numbers)); },
      {.batch_size = arguments.per_device_eval_batch_size,
       .num_workers = arguments.dataloader_num_workers,
       .prefetch_factor = arguments.dataloader_prefetch_factor});
  Share share;
  for (const auto& metric : metrics) metric->reset();
  const at::NoGradGuard no_grad;
  while (const auto numbered = loader.next()) {
    at::Tensor logits;
    {
      const AutocastGuard autocast(arguments.bf16);
      logits = forward(numbered->second);
    }
    add_batch(logits.to(at::kFloat).contiguous(), numbered->first, numbered->second, metrics, keep_logits,
              share);
  }

  const auto sums = at::tensor({share.loss_sum, share.samples}, at::kDouble);
  group.all_reduce(sums);
  EvaluationResult result{.has_labels = sums[1].item<double>() > 0};
  if (result.has_labels) {
    result.loss = sums[0].item<double>() / static_cast<double>(dataset.size);
    result.metrics = compute(metrics, group);
  }
  if (keep_logits) result.logits = gather_logits(share.rows, dataset.size, num_labels, group);
  return result;
}

}  // namespace lockstep
