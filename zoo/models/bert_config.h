// The fields of a BERT's config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::models {

/// config.json's fields and defaults.
struct BertConfig {
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  std::string hidden_act = "gelu";  ///< gelu (erf), gelu_new, gelu_pytorch_tanh, relu, silu, swish or tanh
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double classifier_dropout = -1;  ///< negative: hidden_dropout_prob, as null in config.json
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  int64_t pad_token_id = 0;                                  ///< negative: null in config.json
  std::vector<std::string> labels = {"LABEL_0", "LABEL_1"};  ///< id2label, by id
  /// The first of "architectures": transformers' name of the model's class; empty: not known.
  std::string architecture = "BertForSequenceClassification";
  /// As transformers has it: single_label_classification, multi_label_classification or regression; empty: null.
  std::string problem_type{};

  /// A small encoder to train from scratch: 4 layers, 256 wide, 4 heads, 1024 intermediate.
  static BertConfig small();
  /// Throws FileError naming file and field.
  static BertConfig from_file(const std::filesystem::path& config_json);
  /// Writes atomically. Throws FileError.
  void save(const std::filesystem::path& config_json) const;
  /// The text of config.json.
  std::string to_json() const;
  /// Throws ValueError naming the field whose value cannot work.
  void check() const;
  /// Whether the model gives each text one of its labels: problem_type is single_label_classification or, if there is
  /// none, a trained head (`has_head`) has two or more outputs, since transformers trains a single one as a regression.
  bool is_single_label(bool has_head) const;
};

/// Throws ValueError when a tokenizer of `tokenizer_vocab_size` entries (its largest id + 1), read from
/// `vocab_file`, has ids that `config`'s embeddings lack.
void check_vocab_fits(const BertConfig& config, int64_t tokenizer_vocab_size,
                      const std::filesystem::path& vocab_file);

/// Whether a BERT of ours can compute `name`, an activation by Hugging Face's names.
bool is_known_activation(const std::string& name);

}  // namespace lockstep::models
