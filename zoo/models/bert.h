// BERT for the classification of texts and of tokens and for question answering, with Hugging Face's names, so that its
// files load and ours load there.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/zoo/models/bert_config.h"

namespace lockstep::models {

/// What the models read.
struct BertBatch {
  at::Tensor input_ids;       ///< int64 [batch, length]
  at::Tensor token_type_ids;  ///< int64 [batch, length]; undefined: all 0
  at::Tensor attention_mask;  ///< int64 [batch, length], 1 = token, 0 = padding; undefined: all 1
};

class BertModelImpl;
struct WeightAndBias;

/// What BERT's models for several tasks have in common: an encoder and a linear layer behind it, with transformers' names of
/// parameters.
class BertWithHeadImpl : public torch::nn::Module {
 public:
  /// For whoever fills the weights next.
  struct Uninitialized {};
  /// The sizes, labels and dropout probabilities, as set_dropout() has left them.
  const BertConfig& config() const { return config_; }
  /// Probabilities of dropout for what follows, e.g. 0 for exact comparisons; ValueError outside [0, 1).
  void set_dropout(double hidden, double attention);

 protected:
  /// What a model is made of.
  struct Parts {
    const char* architecture;  ///< transformers' name of the class
    const char* head;          ///< name of the linear layer
    bool has_pooler;           ///< whether the head reads the pooled first position, and not all of them
  };
  /// The weights hold arbitrary values. The head has an output for each label. Throws ValueError for a config that cannot work.
  BertWithHeadImpl(BertConfig config, const Parts& parts);
  ~BertWithHeadImpl() override;
  /// Fresh weights from torch's default generator: normal with deviation `initializer_range`, biases 0,
  /// LayerNorm 1 and 0.
  void initialize();
  /// Parameters and training mode as in `from`, with memory of their own.
  void copy_from(const BertWithHeadImpl& from, const std::optional<torch::Device>& device);
  /// What the head makes of each position, [batch, length, labels]. `with_padding`: padding is computed too, as in transformers;
  /// otherwise its values are 0.
  at::Tensor of_positions(const BertBatch& batch, double dropout, bool with_padding);
  /// The probability of dropout before a classifier.
  double classifier_dropout() const;

  BertConfig config_;                    ///< sizes, dropout, labels
  std::shared_ptr<BertModelImpl> bert_;  ///< the encoder
  std::shared_ptr<WeightAndBias> head_;  ///< the layer over it
};

/// transformers' BertForSequenceClassification (Devlin et al., arXiv 1810.04805): encoder, pooler, dropout and a
/// linear layer, with transformers' names of parameters.
class BertForSequenceClassificationImpl : public BertWithHeadImpl {
 public:
  static constexpr Parts kParts{"BertForSequenceClassification", "classifier", true};  ///< what it is made of
  /// Fresh weights from torch's default generator: normal with deviation `initializer_range`, biases 0,
  /// LayerNorm 1 and 0. Throws ValueError for a config that cannot work.
  explicit BertForSequenceClassificationImpl(BertConfig config);
  /// The weights hold arbitrary values until they are loaded. Throws ValueError for a config that cannot work.
  BertForSequenceClassificationImpl(BertConfig config, Uninitialized);

  /// Returns logits [batch, labels]: float64 if the model's parameters are, otherwise float32. Padding is left out of the
  /// computation where the first token of every sequence is a real one. Throws ValueError for more tokens than positions.
  at::Tensor forward(const BertBatch& batch);
  /// A copy with parameters of its own.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
};
TORCH_MODULE(BertForSequenceClassification);

/// transformers' BertForTokenClassification: an encoder without pooler, dropout and a linear layer on each position.
class BertForTokenClassificationImpl : public BertWithHeadImpl {
 public:
  static constexpr Parts kParts{"BertForTokenClassification", "classifier", false};  ///< what it is made of
  /// See BertForSequenceClassificationImpl.
  explicit BertForTokenClassificationImpl(BertConfig config);
  /// The weights hold arbitrary values until they are loaded. Throws ValueError for a config that cannot work.
  BertForTokenClassificationImpl(BertConfig config, Uninitialized);

  /// Returns logits [batch, length, labels], of dtypes and with errors as BertForSequenceClassification. Those of padding are 0
  /// where it is left out of the computation.
  at::Tensor forward(const BertBatch& batch);
  /// A copy with parameters of its own.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
};
TORCH_MODULE(BertForTokenClassification);

/// transformers' BertForQuestionAnswering: an encoder without pooler and a linear layer that scores each position as the first
/// and as the last one of the answer.
class BertForQuestionAnsweringImpl : public BertWithHeadImpl {
 public:
  static constexpr Parts kParts{"BertForQuestionAnswering", "qa_outputs", false};  ///< what it is made of
  /// See BertForSequenceClassificationImpl. The labels of `config` are replaced by the two that transformers gives such a model.
  explicit BertForQuestionAnsweringImpl(BertConfig config);
  /// The weights hold arbitrary values until they are loaded. Throws ValueError for a config that cannot work.
  BertForQuestionAnsweringImpl(BertConfig config, Uninitialized);

  /// Returns logits [batch, length, 2]: of the answer's first token and of its last one; of dtypes and with errors as
  /// BertForSequenceClassification. Padding is computed as in transformers, where the softmax of the loss goes over it.
  at::Tensor forward(const BertBatch& batch);
  /// A copy with parameters of its own.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
};
TORCH_MODULE(BertForQuestionAnswering);

/// How load_bert() treats the head.
struct BertLoadOptions {
  /// A head of another size than the labels, or of a model that is no classifier of single labels, is made anew; otherwise it
  /// is an error. Other tensors must have the shapes of config.json.
  bool ignore_mismatched_sizes = false;
  /// The head is made anew even if its size fits, because it was trained for other labels.
  bool new_head = false;
  /// For a model that is used as it is: a file without a trained head of its class is an error, and not a warning.
  bool needs_head = false;
};

/// Loads config.json and model.safetensors of `directory` (a model of this class, a BertModel, another model's encoder or a bare
/// encoder file; missing heads are initialized from `initializer_range` and named in one warning, and so is a head that
/// config.json says is of another of transformers' classes). `labels` not empty: replaces the file's; leave it empty for
/// question answering. Throws
/// FileError naming the tensor that is missing or of the wrong shape, with both shapes, and, for a classifier of texts, for
/// a model that does not give each text one label (problem_type). Model: one of the three above.
template <class Model>
Model load_bert(const std::filesystem::path& directory, std::vector<std::string> labels = {},
                BertLoadOptions options = {});
/// The config.json of `directory` with `labels`, for a model whose weights come from elsewhere: the directory's are not
/// looked at. Throws FileError.
template <class Model>
BertConfig load_bert_config(const std::filesystem::path& directory, std::vector<std::string> labels,
                            BertLoadOptions options = {});
/// Whether config.json names a class with a head that is not `architecture`'s. Heads of several classes have the same name, and may
/// have the same shape. An unknown class is none of them.
bool is_other_class(const BertConfig& config, std::string_view architecture);
/// Writes config.json and model.safetensors so that transformers' from_pretrained loads them. Creates
/// `directory`. Throws FileError.
void save_bert(const BertWithHeadImpl& model, const std::filesystem::path& directory);

/// load_bert() of a classifier of texts.
inline BertForSequenceClassification load_bert_classifier(const std::filesystem::path& directory,
                                                          std::vector<std::string> labels = {},
                                                          BertLoadOptions options = {}) {
  return load_bert<BertForSequenceClassification>(directory, std::move(labels), options);
}
/// save_bert() of a classifier of texts.
inline void save_bert_classifier(const BertForSequenceClassification& model,
                                 const std::filesystem::path& directory) {
  save_bert(*model, directory);
}

}  // namespace lockstep::models
