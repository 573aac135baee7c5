// BERT for sequence classification, with Hugging Face's names, so that its files load and ours load there.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <filesystem>
#include <memory>
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

  /// A small encoder to train from scratch: 4 layers, 256 wide, 4 heads, 1024 intermediate.
  static BertConfig small();
  /// Throws FileError naming file and field.
  static BertConfig from_file(const std::filesystem::path& config_json);
  /// Writes atomically. Throws FileError.
  void save(const std::filesystem::path& config_json) const;
  /// Throws ValueError naming the field whose value cannot work.
  void check() const;
};

struct BertBatch {
  at::Tensor input_ids;       ///< int64 [batch, length]
  at::Tensor token_type_ids;  ///< int64 [batch, length]; undefined: all 0
  at::Tensor attention_mask;  ///< int64 [batch, length], 1 = token, 0 = padding; undefined: all 1
};

class BertModelImpl;
struct WeightAndBias;

class BertForSequenceClassificationImpl : public torch::nn::Module {
 public:
  /// Fresh weights from torch's default generator: normal with deviation `initializer_range`, biases 0,
  /// LayerNorm 1 and 0. Throws ValueError for a config that cannot work.
  explicit BertForSequenceClassificationImpl(BertConfig config);

  /// For whoever fills the weights next.
  struct Uninitialized {};
  BertForSequenceClassificationImpl(BertConfig config, Uninitialized);

  /// Returns logits, float [batch, labels]. Padding is left out of the computation where the first token of
  /// every sequence is a real one. Throws ValueError for more tokens than positions.
  at::Tensor forward(const BertBatch& batch);
  const BertConfig& config() const { return config_; }

  /// Probabilities of dropout for what follows, e.g. 0 for exact comparisons; ValueError outside [0, 1).
  void set_dropout(double hidden, double attention);

 private:
  BertConfig config_;
  std::shared_ptr<BertModelImpl> bert_;
  std::shared_ptr<WeightAndBias> classifier_;
};
TORCH_MODULE(BertForSequenceClassification);

/// Loads config.json and model.safetensors of `directory` (a classifier, a BertModel or a bare encoder file;
/// missing heads are initialised from `initializer_range` and named in one warning). `labels` not empty:
/// replaces the file's, and a head of another size is made anew. Throws FileError naming the tensor that is
/// missing or of the wrong shape.
BertForSequenceClassification load_bert_classifier(const std::filesystem::path& directory,
                                                   std::vector<std::string> labels = {});
/// Writes config.json and model.safetensors so that transformers' from_pretrained loads them. Creates
/// `directory`. Throws FileError.
void save_bert_classifier(BertForSequenceClassification model, const std::filesystem::path& directory);

/// Throws ValueError when a tokenizer of `tokenizer_vocab_size` entries (its largest id + 1), read from
/// `vocab_file`, has ids that `config`'s embeddings lack.
void check_vocab_fits(const BertConfig& config, int64_t tokenizer_vocab_size,
                      const std::filesystem::path& vocab_file);

}  // namespace lockstep::models
