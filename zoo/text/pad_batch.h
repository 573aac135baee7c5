// Token ids of different lengths as the tensors of one batch.
#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

#include "lockstep/zoo/text/bert_tokenizer.h"

namespace lockstep::text {

/// int64 tensors for a model of the BERT type.
struct PaddedBatch {
  at::Tensor input_ids;       ///< [samples, length]
  at::Tensor token_type_ids;  ///< [samples, length]
  at::Tensor attention_mask;  ///< [samples, length], 1 for a token, 0 for padding
  at::Tensor labels;          ///< [samples]; undefined when there were none
};

/// How pad_batch() fills up shorter samples.
struct PadOptions {
  int64_t pad_token_id = 0;        ///< in input_ids; the other tensors are filled up with 0
  int64_t pad_to_multiple_of = 1;  ///< the length is a multiple of it; at least 1
};

/// The samples `indices` of a dataset as one batch, padded on the right to the longest of them, rounded up to
/// a multiple (transformers' DataCollatorWithPadding). `labels`: one a sample of the dataset, or empty. Made
/// to be called by a DataLoader's collate function; thread-safe. Throws ValueError that names the sample for an
/// index outside the dataset or ids and types of different lengths, and for an empty batch, labels that do
/// not match the dataset or a multiple below 1.
PaddedBatch pad_batch(const std::vector<Encoding>& dataset, const std::vector<int64_t>& labels,
                      const std::vector<int64_t>& indices, const PadOptions& options = {});

}  // namespace lockstep::text
