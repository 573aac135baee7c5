// The sizes of a translation transformer, and config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::models {

/// The sizes of a Transformer; the defaults are the base model's of Vaswani et al. (2017), but for seq_len. The two
/// vocabularies have no default.
struct TransformerConfig {
  int64_t source_vocab_size = 0;  ///< at least 1: one more than the highest id
  int64_t target_vocab_size = 0;  ///< likewise
  int64_t seq_len = 350;          ///< positions, special tokens included, on either side
  int64_t d_model = 512;          ///< width of a token; even, and a multiple of num_heads
  int64_t num_layers = 6;         ///< of the encoder, and of the decoder
  int64_t num_heads = 8;          ///< of each attention
  int64_t d_ff = 2048;            ///< inner width of the feed-forward blocks
  double dropout = 0.1;           ///< probability in training mode, in [0, 1)
  int64_t pad_token_id = 1;       ///< of both sides

  /// Throws ValueError for sizes that cannot work: the field, its value, what is allowed.
  void check() const;
  /// All fields as the JSON text of a config.json.
  std::string to_json() const;
  /// Reads what to_json() wrote. Throws FileError that names the file and the field.
  static TransformerConfig from_file(const std::filesystem::path& path);
};

}  // namespace lockstep::models
