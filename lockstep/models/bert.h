// BERT for sequence classification, with Hugging Face's names, so that its files load and ours load there.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

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
  std::string hidden_act = "gelu";
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double classifier_dropout = -1;  ///< negative: hidden_dropout_prob, as null in config.json
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  int64_t pad_token_id = 0;
  std::vector<std::string> labels = {"LABEL_0", "LABEL_1"};  ///< id2label, by id

  /// Throws FileError naming file and field.
  static BertConfig from_file(const std::filesystem::path& config_json);
  void save(const std::filesystem::path& config_json) const;
};

struct BertBatch {
  at::Tensor input_ids;       ///< int64 [batch, length]
  at::Tensor token_type_ids;  ///< int64 [batch, length]
  at::Tensor attention_mask;  ///< int64 [batch, length], 1 = token, 0 = padding
};

class BertForSequenceClassificationImpl : public torch::nn::Module {
 public:
  explicit BertForSequenceClassificationImpl(BertConfig config);
  /// Returns logits, float [batch, labels].
  at::Tensor forward(const BertBatch& batch);
  const BertConfig& config() const;
};
TORCH_MODULE(BertForSequenceClassification);

/// Loads config.json and model.safetensors of `directory` (a classifier, a BertModel or a bare encoder file;
/// missing heads are initialised from `initializer_range`). `labels` not empty: replaces the file's, and a
/// head of another size is made anew. Throws FileError naming the tensor that is missing or of the wrong
/// shape.
BertForSequenceClassification load_bert_classifier(const std::filesystem::path& directory,
                                                   std::vector<std::string> labels = {});
/// Writes config.json and model.safetensors so that transformers' from_pretrained loads them.
void save_bert_classifier(BertForSequenceClassification model, const std::filesystem::path& directory);

}  // namespace lockstep::models
