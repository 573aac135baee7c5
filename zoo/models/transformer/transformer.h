// The encoder-decoder transformer of the translation recipe.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <filesystem>
#include <memory>

#include "lockstep/zoo/models/token_layout.h"
#include "lockstep/zoo/models/transformer/transformer_config.h"

namespace lockstep::models {

namespace transformer {
struct EncoderLayer;
struct DecoderLayer;
struct LinearWeights;
template <class Layer>
struct Stack;
}  // namespace transformer

/// Token ids, int64, on the CPU; padding follows the tokens of its row, and a row has at least one token.
struct TransformerBatch {
  at::Tensor source_ids;  ///< [batch, length]
  at::Tensor target_ids;  ///< [batch, length]: what the decoder reads
};

/// What the encoder made of source sentences.
struct EncodedSource {
  at::Tensor rows;     ///< float [tokens, d_model]
  TokenLayout layout;  ///< where they stand
};

/// Vaswani et al., "Attention Is All You Need" (2017), with the normalization before each block and once more at the
/// end; embeddings and projection are not tied. Names and arithmetic are those of hkproj's
/// pytorch-transformer-distributed: encoder.layers.0.self_attention_block.w_q.weight, src_pos.pe and so on.
class TransformerImpl : public torch::nn::Module {
 public:
  /// Fresh weights from torch's default generator: Xavier uniform for matrices, and as torch.nn.Linear's for its
  /// biases. Throws ValueError for sizes that cannot work.
  explicit TransformerImpl(TransformerConfig config);

  /// Logits, float [target tokens, target_vocab_size], one row for every target id that is not padding, sentence
  /// after sentence. Padding is not computed on either side. Throws ValueError that names the row for ids out
  /// of range, padding before a token, and sentences of more than seq_len tokens.
  at::Tensor forward(const TransformerBatch& batch);

  /// The first half of forward(), of the source side. Throws ValueError as forward() does.
  EncodedSource encode(const at::Tensor& source_ids);
  /// The second half. Throws ValueError as forward() does, and for another number of sentences than `source` has.
  at::Tensor decode(const at::Tensor& target_ids, const EncodedSource& source);

  /// As the constructor was given it.
  const TransformerConfig& config() const { return config_; }

  /// Its parts, for what computes with the weights in another order.
  struct Parts {
    std::shared_ptr<transformer::Stack<transformer::EncoderLayer>> encoder;  ///< layers, normalization
    std::shared_ptr<transformer::Stack<transformer::DecoderLayer>> decoder;  ///< likewise
    at::Tensor source_embedding;                             ///< parameter, [source_vocab_size, d_model]
    at::Tensor target_embedding;                             ///< parameter, [target_vocab_size, d_model]
    at::Tensor source_positions;                             ///< buffer, [1, seq_len, d_model]
    at::Tensor target_positions;                             ///< buffer, [1, seq_len, d_model]
    std::shared_ptr<transformer::LinearWeights> projection;  ///< [target_vocab_size, d_model], and bias
  };
  /// They share memory with the model.
  const Parts& parts() const { return parts_; }

 private:
  at::Tensor embed(const at::Tensor& ids, const TokenLayout& layout, const at::Tensor& table,
                   const at::Tensor& positions) const;
  double dropout_now() const;
  TransformerConfig config_;
  Parts parts_;
};
TORCH_MODULE(Transformer);

/// Loads config.json and model.safetensors, or a checkpoint's, of `directory`. Throws FileError naming file
/// and tensor.
Transformer load_transformer(const std::filesystem::path& directory);

}  // namespace lockstep::models
