// The decoder of a transformer, token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/models/transformer/transformer.h"

namespace lockstep::models {

/// The decoder's weights, laid out for products with few rows: transposed, and those with the same input side by
/// side. A copy, so later changes of the model do not show.
struct DecoderWeights {
  explicit DecoderWeights(const TransformerImpl& model);
  struct Norm {
    at::Tensor alpha, bias;
  };
  struct Layer {
    at::Tensor qkv, self_output;              ///< [d_model, 3 d_model], [d_model, d_model]
    at::Tensor cross_query, cross_key_value;  ///< [d_model, d_model], [d_model, 2 d_model]
    at::Tensor cross_output;                  ///< [d_model, d_model]
    at::Tensor in, in_bias, out, out_bias;    ///< [d_model, d_ff], [d_ff, d_model]
    Norm norms[3];
  };
  std::vector<Layer> layers;
  Norm norm;
  at::Tensor projection, projection_bias;  ///< [d_model, vocabulary]
  at::Tensor embedding;                    ///< [vocabulary, d_model], times sqrt(d_model)
  at::Tensor positions;                    ///< [seq_len, d_model]
};

/// Sentences that are being decoded together, `beams` rows for each: row r belongs to the sentence in place
/// r / beams. All rows have read the same number of tokens. Not thread-safe.
class DecoderState {
 public:
  virtual ~DecoderState() = default;
  /// Reads one token per row, int64 [rows], and returns the logits of the next, float [rows, vocabulary].
  virtual at::Tensor step(const at::Tensor& ids) = 0;
  /// Row r goes on from what row `from[r]` has read. `from`: int64 [rows], within the same sentence.
  virtual void reorder(const at::Tensor& from) = 0;
  /// The sentence in `place` is done: the last one takes its place.
  virtual void drop(int64_t place) = 0;
};

/// With cached keys and values: a step computes one token per row.
std::unique_ptr<DecoderState> cached_decoder(const TransformerImpl& model, const DecoderWeights& weights,
                                             const EncodedSource& source, int64_t beams);
/// Without: a step computes all tokens so far again. For comparison.
std::unique_ptr<DecoderState> uncached_decoder(TransformerImpl& model, const at::Tensor& source_ids,
                                               int64_t beams);

}  // namespace lockstep::models
