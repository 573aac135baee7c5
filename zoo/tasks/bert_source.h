// Where a BERT comes from: its flags, its vocabulary, its weights.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/zoo/models/bert.h"
#include "lockstep/zoo/tasks/recipe_flags.h"
#include "lockstep/zoo/tasks/text_classification.h"
#include "lockstep/zoo/text/bert_tokenizer.h"

namespace lockstep {
class OpenedRun;
}

namespace lockstep::tasks {

/// Flags of a BertSource that errors of recipes name (flag_errors.h).
inline constexpr std::array<std::string_view, 1> kBertSourceFlags = {"model-config"};

/// The labels of a run that resumes from `checkpoint`, which must stay. Throws FileError.
KnownLabels read_labels(const checkpoint::Checkpoint& checkpoint);

/// Where a vocabulary that is made of the training texts lies: in output_dir, and in the checkpoint of a run that resumes.
/// `run`: null before it is opened.
std::filesystem::path vocabulary_path(const std::filesystem::path& output_dir, const OpenedRun* run);

/// --model-name-or-path, --model-config, --tokenizer-name and the dropouts.
struct BertSource {
  std::filesystem::path model_name_or_path;  ///< a trained model's directory; empty: model_config
  std::filesystem::path tokenizer_name;      ///< directory, vocab.txt or tokenizer.json; empty: the model's
  std::string model_config;  ///< "small" or the path of a config.json: a new model; empty: model_name_or_path
  double hidden_dropout = -1;     ///< negative: the model's
  double attention_dropout = -1;  ///< negative: the model's
  bool ignore_mismatched_sizes =
      false;  ///< a head that does not fit the labels is made anew; otherwise an error

  /// Whether the head has an output for each label of the data.
  enum class Head { labels, fixed };
  /// Adds the flags, which write into the members above; --ignore-mismatched-sizes for a head of labels.
  void add_flags(RecipeFlags& flags, Head head = Head::labels);
  /// What the model is for.
  enum class Use { training, prediction };
  /// Throws ValueError for flags that do not fit together.
  void check(Use use) const;

  /// Throws FileError if --model-name-or-path is not a directory.
  void check_directory() const;
  /// The labels of the model, and whether they may be replaced. `Model`: a classifier of texts or of tokens; a head of another
  /// class is none. Throws FileError.
  template <class Model = models::BertForSequenceClassification>
  KnownLabels known_labels() const;
  /// From --tokenizer-name or the model's directory; where neither is given, `vocabulary`. Throws FileError.
  text::BertTokenizer load_tokenizer(const std::filesystem::path& vocabulary) const;
  /// Whether neither --model-name-or-path nor --tokenizer-name is given, so that a vocabulary must be made.
  bool needs_vocabulary() const { return model_name_or_path.empty() && tokenizer_name.empty(); }
  /// New weights come from torch's default generator. `labels`: none for question answering. Throws FileError and ValueError.
  /// A model for prediction must have a trained head.
  template <class Model = models::BertForSequenceClassification>
  Model load_model(const ChosenLabels& labels, const text::BertTokenizer& tokenizer,
                   const std::filesystem::path& vocabulary, Use use = Use::training) const;
  /// A model as load_model() makes it, whose weights come from a checkpoint: those here hold arbitrary values. Throws FileError
  /// and ValueError.
  template <class Model = models::BertForSequenceClassification>
  Model make_model(const std::vector<std::string>& labels, const text::BertTokenizer& tokenizer,
                   const std::filesystem::path& vocabulary) const;

 private:
  std::filesystem::path tokenizer_path(const std::filesystem::path& vocabulary) const;
  template <class Model>
  models::BertConfig new_config(const std::vector<std::string>& labels,
                                const text::BertTokenizer& tokenizer) const;
  void finish(models::BertWithHeadImpl& model, const text::BertTokenizer& tokenizer,
              const std::filesystem::path& vocabulary) const;
};

}  // namespace lockstep::tasks
