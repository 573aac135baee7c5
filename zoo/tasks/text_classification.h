// Text files as a classifier's datasets: labels, tokens, batches, predictions.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/zoo/tables/text_table.h"
#include "lockstep/zoo/text/bert_tokenizer.h"

namespace lockstep::tasks {

/// The labels of a training file's column, by id. Whole numbers (in the first row, hence in all): as many as
/// the greatest says, called LABEL_0, LABEL_1, ... as Hugging Face does. Names: sorted, or in the order of the
/// file's class names (TextTable::class_names()). Throws ValueError
/// naming file and line (record) for a label that does not fit, and for a column with a single label.
std::vector<std::string> infer_labels(const tables::TextTable& table, const std::string& column);

/// Whether `values`, labels as they stand in data, are all of `known`, the names of a model's labels, and no others:
/// letter by letter, or as whole numbers, of which LABEL_0, LABEL_1, ... stand for 0, 1, ...
bool are_same_labels(const std::vector<std::string>& values, const std::vector<std::string>& known);

/// Whether nobody has named the labels: they are LABEL_0, LABEL_1, ...
bool has_default_names(const std::vector<std::string>& labels);

/// The labels of a model that a run begins with.
struct KnownLabels {
  std::vector<std::string> names{};  ///< by id; empty for a new model
  /// Whether the model has a trained head that tells them apart; false for a new model, and for an encoder, whose names are
  /// only the default ones.
  bool has_classifier = false;
  bool may_replace_head =
      false;             ///< --ignore-mismatched-sizes: labels that do not fit the head get a new one
  std::string advice{};  ///< behind the error about a label that a trained head does not have
};

/// The labels of a run.
struct ChosenLabels {
  std::vector<std::string> names{};  ///< by id
  bool new_head = false;             ///< the model's head was trained for others, and is to be made anew
};

/// `given` if any; else the model's if `train` is absent. A trained head keeps its labels and their order; one with default
/// names takes those of `train` if it has as many. Each label of `train` must be one of them: otherwise throws ValueError that names file and line of the first that is not or, with
/// may_replace_head, takes those of `train` and a new head. An encoder's names are taken if `train` has the same ones
/// (are_same_labels). Otherwise those of `train` (infer_labels).
ChosenLabels choose_labels(const std::vector<std::string>& given, const KnownLabels& known,
                           const std::optional<tables::TextTable>& train, const std::string& column);

/// The labels of a run whose data have the labels `wanted`, and maybe no others. A trained head of these labels or of more
/// keeps its own and their order; one whose names are only default ones takes `wanted` if it has as many. Any other is
/// replaced if it may be, or throws ValueError that names the label that it does not have. An encoder has `wanted`, in the
/// order of its own names if they are the same.
ChosenLabels choose_wanted_labels(const std::vector<std::string>& wanted, const KnownLabels& known);

/// Which labels with_labels() expects to find.
enum class ExpectedLabels {
  any,  ///< at least one of them
  all,  ///< each of them
};
/// The rows of `table` whose label is one of `labels`, letter by letter. Throws ValueError that names the file, the
/// labels that are there and those that were expected, if the expected ones are missing.
tables::TextTable with_labels(const tables::TextTable& table, const std::string& column,
                              const std::vector<std::string>& labels,
                              ExpectedLabels expected = ExpectedLabels::any);

/// The id of every row's label: its place in `labels` by name, else by number; where names are whole numbers
/// themselves, "1.0" is the label "1", and no number is a place. Throws ValueError naming file, line, the label and
/// what was expected.
std::vector<int64_t> label_ids(const tables::TextTable& table, const std::string& column,
                               const std::vector<std::string>& labels);

/// Whether label_ids() finds an id for every row. Throws ValueError if two of `labels` have one name.
bool knows_labels(const tables::TextTable& table, const std::string& column,
                  const std::vector<std::string>& labels);

/// Names of a table's columns.
struct TextColumns {
  std::string text = "text";               ///< the text, or the first one of a pair
  std::optional<std::string> text_pair{};  ///< the second text of a pair; none: single texts
  std::optional<std::string> label{};      ///< none: samples without labels
};

/// How text_dataset() makes tokens of texts.
struct TextDatasetOptions {
  size_t max_seq_length = 128;     ///< tokens; longer texts are cut
  bool pad_to_max_length = false;  ///< pad each batch to max_seq_length, not to its longest sample
  /// Tokens of all texts are held in memory. Otherwise only their lengths are, and each batch is tokenized again, by the
  /// tokenizer, which must outlive the dataset: for a table larger than memory.
  bool keep_tokens = true;
};
/// Tokenizes `table` now, and pads each batch when it is made. A Batch holds input_ids, token_type_ids and
/// attention_mask, int64 [samples, length], and, with a column of labels, labels, int64 [samples]: places in `labels`.
/// Throws ValueError for missing columns and bad labels.
Dataset text_dataset(const tables::TextTable& table, const TextColumns& columns,
                     const text::BertTokenizer& tokenizer, const std::vector<std::string>& labels,
                     const TextDatasetOptions& options = {});

}  // namespace lockstep::tasks
