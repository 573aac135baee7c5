// The decoder of a transformer, token by token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/zoo/models/transformer/transformer.h"

namespace lockstep::models {

/// The decoder's weights, laid out for products with few rows: transposed, and those with the same input side by
/// side. A copy, so later changes of the model do not show.
struct DecoderWeights {
  /// Copies the weights that `model` has now.
  explicit DecoderWeights(const TransformerImpl& model);
  /// A normalization: factor and summand.
  struct Norm {
    at::Tensor alpha;  ///< [d_model]
    at::Tensor bias;   ///< [d_model]
  };
  /// One layer of the decoder; a product is input [rows, inputs] times weight [inputs, outputs].
  struct Layer {
    at::Tensor qkv;              ///< self-attention: [d_model, 3 d_model]
    at::Tensor self_output;      ///< [d_model, d_model]
    at::Tensor cross_query;      ///< attention to the source: [d_model, d_model]
    at::Tensor cross_key_value;  ///< [d_model, 2 d_model]
    at::Tensor cross_output;     ///< [d_model, d_model]
    at::Tensor in;               ///< feed-forward: [d_model, d_ff]
    at::Tensor in_bias;          ///< [d_ff]
    at::Tensor out;              ///< [d_ff, d_model]
    at::Tensor out_bias;         ///< [d_model]
    Norm norms[3];               ///< before self-attention, cross-attention and feed-forward
  };
  std::vector<Layer> layers;   ///< from the first to the last
  Norm norm;                   ///< after the last layer
  at::Tensor projection;       ///< [d_model, vocabulary]
  at::Tensor projection_bias;  ///< [vocabulary]
  at::Tensor embedding;        ///< [vocabulary, d_model], times sqrt(d_model)
  at::Tensor positions;        ///< [seq_len, d_model]
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
