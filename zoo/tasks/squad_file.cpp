#include "lockstep/zoo/tasks/squad_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/zoo/tables/bad_rows.h"

namespace lockstep::tasks {
namespace {

using nlohmann::json;

constexpr const char* kExpected =
    R"(expected SQuAD's {"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}, or a list of questions with )"
    R"(their "context" under "data")";

/// A question cannot be used.
struct BadQuestion {
  std::string what;
};

const std::string& string_at(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) throw BadQuestion{fmt::format("has no text \"{}\"", key)};
  return found->get_ref<const std::string&>();
}

class SquadReader {
 public:
  SquadReader(const std::filesystem::path& path, const SquadOptions& options)
      : path_(path), options_(options) {}

  SquadFile read() {
    if (path_.extension() == ".jsonl") {
      read_lines();
    } else {
      read_document();
    }
    if (all_.questions.empty()) throw FileError(fmt::format("{} holds no question", path_.string()));
    all_.source = path_;
    all_.have_answers = questions_with_answers_ == all_.questions.size();
    all_.fingerprint = fingerprint();
    return std::move(all_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", path_.string(), what));
  }

  json parse(std::string_view text, const std::string& place) const {
    size_t byte = 0;
    json value = parse_json(text, &byte);
    if (value.is_discarded()) fail(fmt::format("{}not JSON: byte {} is wrong", place, byte));
    return value;
  }

  void read_lines() {
    const std::string content = read_text_file(path_);
    int64_t line = 0;
    for (std::string_view rest = content; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      ++line;
      const auto text = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      read_flat(parse(text, fmt::format("line {}: ", line)));
    }
  }

  void read_document() {
    const std::string content = read_text_file(path_);
    const json document = parse(content, "");
    const auto data = document.is_object() ? document.find("data") : document.end();
    if (!document.is_object() || data == document.end() || !data->is_array()) fail(kExpected);
    for (const auto& article : *data) {
      const auto paragraphs = article.is_object() ? article.find("paragraphs") : article.end();
      if (!article.is_object() || paragraphs == article.end()) {
        read_flat(article);
        continue;
      }
      if (!paragraphs->is_array()) fail(kExpected);
      for (const auto& paragraph : *paragraphs) read_paragraph(paragraph);
    }
  }

  void read_paragraph(const json& paragraph) {
    const auto context = paragraph.is_object() ? paragraph.find("context") : paragraph.end();
    const auto questions = paragraph.is_object() ? paragraph.find("qas") : paragraph.end();
    if (!paragraph.is_object() || context == paragraph.end() || !context->is_string() ||
        questions == paragraph.end() || !questions->is_array())
      fail(kExpected);
    const size_t number = all_.contexts.size();
    all_.contexts.push_back(context->get<std::string>());
    for (const auto& question : *questions) try_to_add(question, number);
  }

  /// An object with a context of its own; questions about the same one share it.
  void read_flat(const json& row) {
    const auto context = row.is_object() ? row.find("context") : row.end();
    if (!row.is_object() || context == row.end() || !context->is_string()) fail(kExpected);
    const auto text = context->get<std::string>();
    const auto [found, is_new] = by_context_.emplace(text, all_.contexts.size());
    if (is_new) all_.contexts.push_back(text);
    try_to_add(row, found->second);
  }

  void try_to_add(const json& question, size_t context) {
    ++read_;
    try {
      add(question, context);
    } catch (const BadQuestion& bad) {
      const auto id = question.is_object() ? question.find("id") : question.end();
      const std::string name = question.is_object() && id != question.end() && id->is_string()
                                   ? id->get<std::string>()
                                   : fmt::format("number {}", read_);
      const std::string message = fmt::format("{}: question {}: {}", path_.string(), name, bad.what);
      if (!options_.skip_bad_rows)
        throw FileError(fmt::format("{}; --skip-bad-rows leaves such questions out", message));
      if (all_.skipped_rows++ == 0) all_.first_skipped = message;
    }
  }

  void add(const json& row, size_t context) {
    if (!row.is_object()) throw BadQuestion{"is no object with id, question and answers"};
    SquadQuestion question{
        .id = string_at(row, "id"), .question = string_at(row, "question"), .context = context};
    if (ids_.contains(question.id)) throw BadQuestion{"another question has this id; each needs its own"};
    const bool has_answers = row.contains("answers");
    if (has_answers) question.answers = read_answers(row["answers"], all_.contexts[context]);
    if (!has_answers && options_.needs_answers) throw BadQuestion{"has no \"answers\""};
    const bool is_impossible = row.value("is_impossible", json(false)) == json(true);
    if (is_impossible && !question.answers.empty())
      throw BadQuestion{"is_impossible is true, but there are answers"};
    if (options_.needs_answers && question.answers.empty() && !options_.may_lack_answer)
      throw BadQuestion{"its text does not answer it; such questions need --version-2-with-negative"};
    ids_.insert(question.id);
    questions_with_answers_ += has_answers ? 1 : 0;
    all_.questions.push_back(std::move(question));
  }

  /// SQuAD's [{"text", "answer_start"}], or {"text": [...], "answer_start": [...]} as `datasets` stores it.
  static std::vector<SquadAnswer> read_answers(const json& value, const std::string& context) {
    std::vector<SquadAnswer> answers;
    const auto add = [&](const json& text, const json& start) {
      if (!text.is_string() || !start.is_number_integer())
        throw BadQuestion{"an answer has no text or no whole number answer_start"};
      answers.push_back({.text = text.get<std::string>(), .start = start.get<int64_t>()});
      check(answers.back(), context);
    };
    if (value.is_array()) {
      for (const auto& answer : value) {
        if (!answer.is_object()) throw BadQuestion{"an answer is no object with text and answer_start"};
        add(answer.value("text", json()), answer.value("answer_start", json()));
      }
      return answers;
    }
    const json texts = value.is_object() ? value.value("text", json()) : json();
    const json starts = value.is_object() ? value.value("answer_start", json()) : json();
    if (!texts.is_array() || !starts.is_array() || texts.size() != starts.size())
      throw BadQuestion{"\"answers\" has not as many texts as answer_starts"};
    for (size_t i = 0; i < texts.size(); ++i) add(texts[i], starts[i]);
    return answers;
  }

  static void check(const SquadAnswer& answer, const std::string& context) {
    if (answer.text.empty()) throw BadQuestion{"an answer is empty"};
    const auto offsets = character_offsets(context);
    const auto characters = static_cast<int64_t>(offsets.size()) - 1;
    const bool is_inside = answer.start >= 0 && answer.start < characters;
    const auto there = is_inside
                           ? std::string_view(context).substr(offsets[static_cast<size_t>(answer.start)])
                           : std::string_view();
    if (is_inside && there.starts_with(answer.text)) return;
    throw BadQuestion{fmt::format("the answer {} does not stand at character {} of its text, where {} is",
                                  tables::shown(answer.text), answer.start,
                                  is_inside ? tables::shown(there.substr(0, answer.text.size())) : "none")};
  }

  DataFingerprint fingerprint() const {
    DataFingerprinter fingerprinter({"id", "question", "context", "answers"});
    for (const auto& question : all_.questions) {
      fingerprinter.add(0, question.id);
      fingerprinter.add(1, question.question);
      fingerprinter.add(2, all_.contexts[question.context]);
      json answers = json::array();
      for (const auto& answer : question.answers) answers.push_back({answer.text, answer.start});
      fingerprinter.add(3, dump_json(answers));
    }
    fingerprinter.add_rows(all_.questions.size());
    return fingerprinter.finish();
  }

  const std::filesystem::path& path_;
  const SquadOptions& options_;
  SquadFile all_{};
  std::unordered_map<std::string, size_t> by_context_{};
  std::unordered_set<std::string> ids_{};
  size_t questions_with_answers_ = 0;
  int64_t read_ = 0;
};

}  // namespace

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::vector<size_t> character_offsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t byte = 0; byte < text.size(); ++byte) {
    if ((static_cast<unsigned char>(text[byte]) & 0xC0) != 0x80) offsets.push_back(byte);
  }
  offsets.push_back(text.size());
  return offsets;
}

int64_t SquadAnswer::end() const { return start + count_characters(text); }

SquadFile read_squad(const std::filesystem::path& path, const SquadOptions& options) {
  return SquadReader(path, options).read();
}

}  // namespace lockstep::tasks
