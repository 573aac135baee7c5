// BERT for sequence classification, with Hugging Face's names, so that its files load and ours load there.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/zoo/models/bert_config.h"

namespace lockstep::models {

/// What BertForSequenceClassification reads.
struct BertBatch {
  at::Tensor input_ids;       ///< int64 [batch, length]
  at::Tensor token_type_ids;  ///< int64 [batch, length]; undefined: all 0
  at::Tensor attention_mask;  ///< int64 [batch, length], 1 = token, 0 = padding; undefined: all 1
};

class BertModelImpl;
struct WeightAndBias;

/// transformers' BertForSequenceClassification (Devlin et al., arXiv 1810.04805): encoder, pooler, dropout and a
/// linear layer, with transformers' names of parameters.
class BertForSequenceClassificationImpl : public torch::nn::Module {
 public:
  /// Fresh weights from torch's default generator: normal with deviation `initializer_range`, biases 0,
  /// LayerNorm 1 and 0. Throws ValueError for a config that cannot work.
  explicit BertForSequenceClassificationImpl(BertConfig config);

  /// For whoever fills the weights next.
  struct Uninitialized {};
  /// The weights hold arbitrary values until they are loaded. Throws ValueError for a config that cannot work.
  BertForSequenceClassificationImpl(BertConfig config, Uninitialized);

  /// Returns logits [batch, labels]: float64 if the model's parameters are, otherwise float32. Padding is left out of the
  /// computation where the first token of every sequence is a real one. Throws ValueError for more tokens than positions.
  at::Tensor forward(const BertBatch& batch);
  /// A copy with parameters of its own.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  /// The sizes, labels and dropout probabilities, as set_dropout() has left them.
  const BertConfig& config() const { return config_; }

  /// Probabilities of dropout for what follows, e.g. 0 for exact comparisons; ValueError outside [0, 1).
  void set_dropout(double hidden, double attention);

 private:
  BertConfig config_;
  std::shared_ptr<BertModelImpl> bert_;
  std::shared_ptr<WeightAndBias> classifier_;
};
TORCH_MODULE(BertForSequenceClassification);

/// How load_bert_classifier() treats the head.
struct BertLoadOptions {
  /// A head of another size than the labels, or of a model that is no classifier of single labels, is made anew; otherwise it
  /// is an error. Other tensors must have the shapes of config.json.
  bool ignore_mismatched_sizes = false;
  /// The head is made anew even if its size fits, because it was trained for other labels.
  bool new_head = false;
};

/// Loads config.json and model.safetensors of `directory` (a classifier, a BertModel or a bare encoder file;
/// missing heads are initialised from `initializer_range` and named in one warning). `labels` not empty:
/// replaces the file's. Throws FileError naming the tensor that is missing or of the wrong shape, with both shapes, and for
/// a model that does not give each text one label (problem_type).
BertForSequenceClassification load_bert_classifier(const std::filesystem::path& directory,
                                                   std::vector<std::string> labels = {},
                                                   BertLoadOptions options = {});
/// The config.json of `directory` with `labels`, for a model whose weights come from elsewhere: the directory's are not
/// looked at. Throws FileError.
BertConfig load_bert_config(const std::filesystem::path& directory, std::vector<std::string> labels,
                            BertLoadOptions options = {});
/// Writes config.json and model.safetensors so that transformers' from_pretrained loads them. Creates
/// `directory`. Throws FileError.
void save_bert_classifier(BertForSequenceClassification model, const std::filesystem::path& directory);

}  // namespace lockstep::models
