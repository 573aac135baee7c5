#include "lockstep/trainer/evaluation.h"

#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sampler.h"
#include "lockstep/optim/autocast.h"

namespace lockstep::trainer {
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

}  // namespace

void for_each_logits(const Dataset& dataset, const Forward& forward, const TrainingArguments& arguments,
                     int world_size, int rank,
                     const std::function<void(const at::Tensor& logits, const std::vector<int64_t>& indices,
                                              const Batch& batch)>& consume) {
  if (dataset.size < 1) throw ValueError("the dataset to evaluate is empty; give at least one sample");
  const auto order = by_length(dataset);
  auto indices = data::evaluation_indices(dataset.size, world_size, rank);
  for (auto& index : indices) index = order[static_cast<size_t>(index)];

  using Numbered = std::pair<std::vector<int64_t>, Batch>;
  data::Loader<Numbered> loader(
      indices,
      [&](const std::vector<int64_t>& numbers) { return Numbered(numbers, dataset.collate(numbers)); },
      {.batch_size = arguments.per_device_eval_batch_size,
       .num_workers = arguments.dataloader_num_workers,
       .prefetch_factor = arguments.dataloader_prefetch_factor});
  const at::NoGradGuard no_grad;
  while (const auto numbered = loader.next()) {
    at::Tensor logits;
    {
      const AutocastGuard autocast(arguments.bf16);
      logits = forward(numbered->second);
    }
    consume(logits.to(at::kFloat).contiguous(), numbered->first, numbered->second);
  }
}

EvaluationResult evaluate_classifier(const Dataset& dataset, const Forward& forward,
                                     const TrainingArguments& arguments, int64_t num_labels,
                                     const ProcessGroup& group) {
  ConfusionMatrix own(num_labels);
  double loss_sum = 0;
  for_each_logits(
      dataset, forward, arguments, group.size(), group.rank(),
      [&](const at::Tensor& logits, const std::vector<int64_t>&, const Batch& batch) {
        loss_sum += at::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::Sum).item<double>();
        const auto predicted = logits.argmax(1);
        for (int64_t i = 0; i < predicted.numel(); ++i) {
          own.add(batch.labels.const_data_ptr<int64_t>()[i], predicted.const_data_ptr<int64_t>()[i]);
        }
      });

  // Counts are exact in float64, so one collective carries loss and counts.
  const auto sums = at::empty({num_labels * num_labels + 1}, at::kDouble);
  auto* values = sums.mutable_data_ptr<double>();
  values[0] = loss_sum;
  std::copy(own.counts().begin(), own.counts().end(), values + 1);
  group.all_reduce(sums);
  ConfusionMatrix all(num_labels, std::vector<int64_t>(values + 1, values + sums.numel()));
  return {.loss = values[0] / static_cast<double>(dataset.size), .confusion = std::move(all)};
}

at::Tensor predict_logits(const Dataset& dataset, const Forward& forward, const TrainingArguments& arguments,
                          int64_t num_labels, const ProcessGroup& group) {
  // Each sample travels as its number and its logits.
  std::string own;
  for_each_logits(dataset, forward, arguments, group.size(), group.rank(),
                  [&](const at::Tensor& logits, const std::vector<int64_t>& indices, const Batch&) {
                    const auto* row = static_cast<const char*>(logits.const_data_ptr());
                    const size_t row_bytes = sizeof(float) * static_cast<size_t>(num_labels);
                    for (const int64_t index : indices) {
                      own.append(reinterpret_cast<const char*>(&index), sizeof(index));
                      own.append(row, row_bytes);
                      row += row_bytes;
                    }
                  });
  const auto out = at::empty({dataset.size, num_labels}, at::kFloat);
  const size_t row_bytes = sizeof(float) * static_cast<size_t>(num_labels);
  for (const auto& part : group.all_gather_bytes(own)) {
    for (size_t at = 0; at < part.size(); at += sizeof(int64_t) + row_bytes) {
      int64_t index = 0;
      std::memcpy(&index, part.data() + at, sizeof(index));
      std::memcpy(out.mutable_data_ptr<float>() + index * num_labels, part.data() + at + sizeof(index),
                  row_bytes);
    }
  }
  return out;
}

}  // namespace lockstep::trainer
