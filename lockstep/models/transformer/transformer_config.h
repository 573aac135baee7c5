// The sizes of a translation transformer, and config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::models {

struct TransformerConfig {
  int64_t source_vocab_size = 0;
  int64_t target_vocab_size = 0;
  int64_t seq_len = 350;  ///< positions, special tokens included, on either side
  int64_t d_model = 512;
  int64_t num_layers = 6;  ///< of the encoder, and of the decoder
  int64_t num_heads = 8;
  int64_t d_ff = 2048;
  double dropout = 0.1;
  int64_t pad_token_id = 1;

  /// Throws ValueError for sizes that cannot work: the field, its value, what is allowed.
  void check() const;
  std::string to_json() const;
  /// Throws FileError that names the file and the field.
  static TransformerConfig from_file(const std::filesystem::path& path);
};

}  // namespace lockstep::models
