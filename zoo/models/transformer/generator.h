// Translations of source sentences: greedy and beam search.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/zoo/models/transformer/decoder_state.h"
#include "lockstep/zoo/models/transformer/transformer.h"

namespace lockstep::models {

/// Names and meanings are those of transformers' generate().
struct GenerateOptions {
  int64_t start_token_id = 2;  ///< what the decoder reads first; generate()'s decoder_start_token_id
  int64_t eos_token_id = 3;    ///< end of sentence
  /// End of sentence included. 0: twice as many as the sentence's source has ids, and ten; at most the model's
  /// positions.
  int64_t max_new_tokens = 0;
  int64_t num_beams = 1;      ///< 1: greedy
  double length_penalty = 1;  ///< finished beams compare by score / length^length_penalty
  bool use_cache = true;      ///< false computes every token so far again; the translations are the same
};

/// The translation of one sentence.
struct Generated {
  std::vector<int64_t> ids{};  ///< without start and end of sentence
  double score = 0;  ///< natural logarithm of the model's probability / length^length_penalty; the length
                     ///< counts the end of sentence
  bool finished = false;  ///< false: max_new_tokens came first
};

/// What Generator returns.
struct GenerateResult {
  std::vector<Generated> sentences{};  ///< the best of each source sentence, in the order of the sources
  int64_t row_steps = 0;  ///< rows (sentences x beams) over all steps: finished sentences take no part
};

/// Translates with the weights that `model` has at construction. Dropout is off, no gradients are made, and padding is never
/// chosen. Scores are sums of the model's log-probabilities, as in transformers: padding's probability goes to no other word.
///
/// A sentence leaves the batch when it is finished: greedy with its end of sentence, beam search when num_beams
/// beams have ended. What a sentence becomes does not depend on the others of its batch, apart from rounding in
/// the last bits of a logit. One thread at a time.
class Generator {
 public:
  /// Copies the decoder's weights; the encoder is `model`'s own.
  explicit Generator(Transformer model);
  /// One batch. `sources`: ids of each sentence, with whatever start and end of sentence the model was trained
  /// with. Throws ValueError for options that cannot work and for a sentence that is empty or longer than the
  /// model's positions.
  GenerateResult generate(const std::vector<std::vector<int64_t>>& sources,
                          const GenerateOptions& options = {});
  /// All of them, in batches of `batch_size` sentences of similar length.
  GenerateResult generate_all(const std::vector<std::vector<int64_t>>& sources, int64_t batch_size,
                              const GenerateOptions& options = {});
  /// As the constructor was given it.
  const Transformer& model() const { return model_; }

 private:
  Transformer model_;
  DecoderWeights weights_;
};

/// Rows of ids, filled up with `pad_token_id` behind: int64 [sentences, longest].
at::Tensor pad_ids(const std::vector<std::vector<int64_t>>& sentences, int64_t pad_token_id);

}  // namespace lockstep::models
