#include "lockstep/zoo/text/pad_batch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::text {
namespace {

// The longest sample's length, all arguments checked.
int64_t find_longest(const std::vector<Encoding>& dataset, const std::vector<int64_t>& labels,
                     const std::vector<int64_t>& indices) {
  if (indices.empty()) throw ValueError("cannot pad a batch of 0 samples");
  if (!labels.empty() && labels.size() != dataset.size()) {
    throw ValueError(fmt::format("{} labels for {} samples", labels.size(), dataset.size()));
  }
  size_t longest = 0;
  for (const int64_t index : indices) {
    if (index < 0 || index >= static_cast<int64_t>(dataset.size())) {
      throw ValueError(fmt::format("there is no sample {} in a dataset of {}", index, dataset.size()));
    }
    const auto& sample = dataset[static_cast<size_t>(index)];
    if (sample.token_type_ids.size() != sample.input_ids.size()) {
      throw ValueError(fmt::format("sample {} has {} input_ids but {} token_type_ids", index,
                                   sample.input_ids.size(), sample.token_type_ids.size()));
    }
    longest = std::max(longest, sample.input_ids.size());
  }
  return static_cast<int64_t>(longest);
}

}  // namespace

PaddedBatch pad_batch(const std::vector<Encoding>& dataset, const std::vector<int64_t>& labels,
                      const std::vector<int64_t>& indices, const PadOptions& options) {
  const int64_t multiple = options.pad_to_multiple_of;
  if (multiple < 1) throw ValueError(fmt::format("pad_to_multiple_of is {}; expected at least 1", multiple));
  const auto rows = static_cast<int64_t>(indices.size());
  const int64_t columns = (find_longest(dataset, labels, indices) + multiple - 1) / multiple * multiple;

  const auto int64 = at::TensorOptions(at::kLong);
  PaddedBatch batch{.input_ids = at::full({rows, columns}, options.pad_token_id, int64),
                    .token_type_ids = at::zeros({rows, columns}, int64),
                    .attention_mask = at::zeros({rows, columns}, int64),
                    .labels = {}};
  auto* ids = batch.input_ids.mutable_data_ptr<int64_t>();
  auto* types = batch.token_type_ids.mutable_data_ptr<int64_t>();
  auto* mask = batch.attention_mask.mutable_data_ptr<int64_t>();
  for (const int64_t index : indices) {
    const auto& sample = dataset[static_cast<size_t>(index)];
    std::copy(sample.input_ids.begin(), sample.input_ids.end(), ids);
    std::copy(sample.token_type_ids.begin(), sample.token_type_ids.end(), types);
    std::fill_n(mask, sample.input_ids.size(), 1);
    ids += columns;
    types += columns;
    mask += columns;
  }
  if (!labels.empty()) {
    batch.labels = at::empty({rows}, int64);
    auto* label = batch.labels.mutable_data_ptr<int64_t>();
    for (const int64_t index : indices) *label++ = labels[static_cast<size_t>(index)];
  }
  return batch;
}

}  // namespace lockstep::text
