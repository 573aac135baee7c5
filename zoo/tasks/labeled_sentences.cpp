#include "lockstep/zoo/tasks/labeled_sentences.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/tables/bad_rows.h"
#include "lockstep/zoo/tables/table_format.h"
#include "lockstep/zoo/tables/table_reader.h"
#include "lockstep/zoo/tables/text_encoding.h"

namespace lockstep::tasks {
namespace {

constexpr std::string_view kBlanks = " \t\r\v\f";

std::vector<std::string_view> split_fields(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t at = 0; (at = line.find_first_not_of(kBlanks, at)) != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    fields.push_back(line.substr(at, end - at));
    at = end;
  }
  return fields;
}

/// Reads lines of words into sentences.
class ConllReader {
 public:
  ConllReader(const std::filesystem::path& path, bool needs_labels)
      : path_(path), needs_labels_(needs_labels) {}

  LabeledSentences read() {
    const std::string content = read_text_file(path_);
    for (std::string_view rest = content; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      ++line_;
      read_line(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    end_sentence();
    if (all_.sentences.empty()) {
      throw FileError(
          fmt::format("{} holds no sentence; expected a word and its label a line", path_.string()));
    }
    all_.source = path_;
    all_.have_labels = fields_ > 1;
    all_.fingerprint = fingerprint();
    return std::move(all_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}:{}: {}", path_.string(), line_, what));
  }

  void read_line(std::string_view line) {
    const size_t good = tables::valid_utf8_prefix(line);
    if (good != line.size()) fail(fmt::format("byte {} is not UTF-8; convert the file", good + 1));
    const auto fields = split_fields(line);
    if (fields.empty() || fields.front() == "-DOCSTART-") return end_sentence();
    if (fields_ == 0) {
      fields_ = fields.size();
      if (fields_ == 1 && needs_labels_)
        fail(fmt::format("{} stands alone; expected a word and, last in the line, its label",
                         tables::shown(line)));
    }
    if (fields.size() != fields_) {
      fail(fmt::format(
          "{} has {} field{}, the lines before it have {}; fields are separated by spaces or tabs",
          tables::shown(line), fields.size(), fields.size() == 1 ? "" : "s", fields_));
    }
    if (sentence_.words.empty()) sentence_.line = line_;
    sentence_.words.emplace_back(fields.front());
    if (fields_ > 1) sentence_.labels.emplace_back(fields.back());
  }

  void end_sentence() {
    if (sentence_.words.empty()) return;
    sentence_.record = all_.size();
    all_.sentences.push_back(std::exchange(sentence_, {}));
  }

  DataFingerprint fingerprint() const {
    DataFingerprinter fingerprinter(fields_ > 1 ? std::vector<std::string>{"words", "labels"}
                                                : std::vector<std::string>{"words"});
    for (const auto& sentence : all_.sentences) {
      const int32_t ends[] = {0, static_cast<int32_t>(sentence.words.size())};
      fingerprinter.add_lists(0, ends);
      for (const auto& word : sentence.words) fingerprinter.add(0, word);
      if (fields_ < 2) continue;
      fingerprinter.add_lists(1, ends);
      for (const auto& label : sentence.labels) fingerprinter.add(1, label);
    }
    fingerprinter.add_rows(all_.sentences.size());
    return fingerprinter.finish();
  }

  const std::filesystem::path& path_;
  const bool needs_labels_;
  LabeledSentences all_{};
  LabeledSentence sentence_{};
  size_t fields_ = 0;  // of each line; 0: none has been read
  int64_t line_ = 0;
};

bool is_table(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  for (const char* ending : {".jsonl", ".ndjson", ".json", ".parquet", ".arrow"}) {
    const size_t at = name.find(ending);
    const auto rest =
        at == std::string::npos ? std::string("?") : name.substr(at + std::string_view(ending).size());
    if (rest.empty() || rest == ".gz" || rest == ".zst" || rest == ".bz2" || rest == ".lz4") return true;
  }
  return false;
}

LabeledSentences read_sentence_table(const std::filesystem::path& path,
                                     const LabeledSentencesOptions& options) {
  using tables::ColumnType;
  const auto there = tables::table_columns(path);
  const bool has_labels =
      options.needs_labels || std::find(there.begin(), there.end(), options.label_column) != there.end();
  tables::TableReaderOptions wanted{.columns = {{options.text_column, ColumnType::STRING_LIST}},
                                    .skip_bad_rows = options.skip_bad_rows};
  if (has_labels) wanted.columns.push_back({options.label_column, ColumnType::STRING_LIST});
  tables::TableReader reader(path, wanted);
  LabeledSentences all{.source = path, .have_labels = has_labels};
  while (const auto rows = reader.next()) {
    const auto words = rows->string_lists(options.text_column);
    const auto labels = has_labels ? rows->string_lists(options.label_column)
                                   : std::vector<std::vector<std::string_view>>(rows->size());
    for (size_t row = 0; row < rows->size(); ++row) {
      all.sentences.push_back({.words = {words[row].begin(), words[row].end()},
                               .labels = {labels[row].begin(), labels[row].end()},
                               .record = rows->record(row),
                               .line = rows->line(row)});
      if (std::find(labels[row].begin(), labels[row].end(), "") != labels[row].end()) {
        throw FileError(fmt::format("{}: a label in column {} is empty; a word without an entity has O",
                                    all.place(all.sentences.size() - 1), options.label_column));
      }
      if (!has_labels || words[row].size() == labels[row].size()) continue;
      throw FileError(
          fmt::format("{}: {} words in column {}, but {} labels in column {}; expected one a word",
                      all.place(all.sentences.size() - 1), words[row].size(), options.text_column,
                      labels[row].size(), options.label_column));
    }
  }
  if (all.sentences.empty()) throw FileError(fmt::format("{} holds no sentence", path.string()));
  all.fingerprint = reader.fingerprint();
  all.skipped_rows = reader.skipped_rows();
  all.first_skipped = reader.first_skipped();
  return all;
}

}  // namespace

std::string LabeledSentences::place(size_t sentence) const {
  const auto& at = sentences[sentence];
  return at.line > 0 ? fmt::format("{}:{}", source.string(), at.line)
                     : fmt::format("{}: record {}", source.string(), at.record + 1);
}

std::vector<std::string> LabeledSentences::labels() const {
  std::set<std::string_view> found;
  for (const auto& sentence : sentences) found.insert(sentence.labels.begin(), sentence.labels.end());
  return {found.begin(), found.end()};
}

LabeledSentences read_labeled_sentences(const std::filesystem::path& path,
                                        const LabeledSentencesOptions& options) {
  return is_table(path) ? read_sentence_table(path, options) : ConllReader(path, options.needs_labels).read();
}

}  // namespace lockstep::tasks
