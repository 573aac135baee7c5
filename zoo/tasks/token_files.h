// The files of a token classification: their flags, sentences and labels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/metrics/metric.h"
#include "lockstep/trainer/training_arguments.h"
#include "lockstep/zoo/tasks/bert_source.h"
#include "lockstep/zoo/tasks/datasets.h"
#include "lockstep/zoo/tasks/labeled_sentences.h"
#include "lockstep/zoo/tasks/recipe_flags.h"

namespace lockstep::tasks {

/// What TokenFiles::read() has read.
struct TokenSentences {
  std::optional<LabeledSentences> train{};       ///< nothing without --train-file
  std::optional<LabeledSentences> validation{};  ///< nothing without --validation-file
  std::optional<LabeledSentences> test{};        ///< nothing without --test-file
  ChosenLabels labels{};                         ///< names of the labels by id
  /// Number of sentences to train on.
  int64_t train_size() const { return train ? train->size() : 0; }
};

/// The labels of a run, as run_ner.py chooses them: those of a trained head, in its order, if all of `train` are among them;
/// otherwise those of `train`, sorted. Throws ValueError that names file and line of the first label that a trained head does not
/// have, unless it may be replaced.
ChosenLabels choose_token_labels(const KnownLabels& known, const std::optional<LabeledSentences>& train);

/// For each label the one that the later tokens of its words get with --label-all-tokens: I-PER for B-PER, if there is one.
std::vector<int64_t> inside_labels(const std::vector<std::string>& labels);

/// A sentence as tokens, its words' labels on their first ones.
struct TokenSample {
  text::Encoding encoding{};      ///< [CLS] words [SEP]
  std::vector<int64_t> labels{};  ///< one a token, -100 for those that do not count; empty without labels
  /// The place of each word's first token, or -1 for a word that was cut off or has no token.
  std::vector<int64_t> first_tokens{};
};

/// --train-file, --validation-file, --test-file and what is in them.
struct TokenFiles {
  std::filesystem::path train_file;            ///< empty: nothing is trained
  std::filesystem::path validation_file;       ///< empty: there is no evaluation
  std::filesystem::path test_file;             ///< empty: nothing is predicted
  std::string text_column_name = "tokens";     ///< of tables
  std::string label_column_name = "ner_tags";  ///< of tables
  std::optional<size_t> max_seq_length;        ///< tokens; default: what the model takes
  bool pad_to_max_length = false;              ///< pad to max_seq_length, not to a batch's longest sentence
  bool label_all_tokens = false;               ///< all tokens of a word are labeled, not the first one alone
  bool return_entity_level_metrics = false;    ///< metrics of each type of entity too
  bool skip_bad_rows = false;                  ///< leave out rows of tables that cannot be read
  bool do_predict = false;                     ///< whether test_file is labeled

  /// Adds the flags, which write into the members above.
  void add_flags(RecipeFlags& flags);
  /// Throws ValueError for flags that do not fit together.
  void check(const TrainingArguments& args) const;

  /// Reads the files and chooses the labels. Throws FileError and ValueError.
  TokenSentences read(const KnownLabels& known) const;
  /// Tokens of the longest sample for a model that takes `positions`. Throws ValueError if it takes fewer than
  /// --max-seq-length.
  int64_t longest_sample(int64_t positions) const;
  /// What a resume must find again: the sentences, the labels and --max-seq-length. `saved`: the record of the checkpoint, empty
  /// without one.
  checkpoint::RunRecord record(const TokenSentences& sentences, int64_t positions,
                               const checkpoint::RunRecord& saved) const;
  /// "precision", "recall", "f1" of entities and "accuracy" of words; with return_entity_level_metrics under run_ner.py's names
  /// for it.
  std::vector<std::shared_ptr<Metric>> metrics(const std::vector<std::string>& labels) const;
  /// The sentences as tokens; with labels if the model knows all of them. Throws ValueError for an unknown label.
  std::vector<TokenSample> encode(const LabeledSentences& sentences, const std::vector<std::string>& labels,
                                  const text::BertTokenizer& tokenizer, int64_t positions) const;
  /// The samples as a dataset. A Batch holds input_ids, token_type_ids, attention_mask and, if they are labeled, labels, int64
  /// [samples, length].
  Dataset dataset(std::shared_ptr<const std::vector<TokenSample>> samples,
                  const text::BertTokenizer& tokenizer, int64_t positions) const;
};

/// How many words of `samples` have no token, because their sentence was cut or they hold only characters that the tokenizer
/// drops.
int64_t count_unlabeled_words(const std::vector<TokenSample>& samples);

/// Writes one JSON line a sentence: {"index", "tokens", "labels"}, with null for a word that has no token. `logits`: [sentences,
/// length, labels]. Atomic. Throws FileError.
void write_token_predictions(const std::filesystem::path& path, const LabeledSentences& sentences,
                             const std::vector<TokenSample>& samples, const at::Tensor& logits,
                             const std::vector<std::string>& labels);

}  // namespace lockstep::tasks
