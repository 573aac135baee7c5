// Scores texts for comparison with the peers'. Each line of standard input is a JSON list [score, hypotheses,
// references]; a line of output has the values by the plain function and by the metric, which takes its samples
// in two batches; of "13a" the tokenized hypotheses.
#include <ATen/ops/full.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/zoo/text/metrics/characters.h"
#include "lockstep/zoo/text/metrics/entity_scores.h"
#include "lockstep/zoo/text/metrics/squad_scores.h"
#include "lockstep/zoo/text/metrics/text_metric.h"
#include "lockstep/zoo/text/metrics/text_scores.h"
#include "lockstep/zoo/text/metrics/text_words.h"

namespace {

using namespace lockstep;
using nlohmann::json;
using Texts = std::vector<std::string>;

std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words;
  std::istringstream stream(name);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

/// Sentences as rows of places in `labels`, filled up with -100.
at::Tensor rows_of(const std::vector<Texts>& sentences, const Texts& labels) {
  size_t longest = 0;
  for (const auto& sentence : sentences) longest = std::max(longest, sentence.size());
  at::Tensor rows =
      at::full({static_cast<int64_t>(sentences.size()), static_cast<int64_t>(longest)}, -100, at::kLong);
  for (size_t s = 0; s < sentences.size(); ++s) {
    for (size_t w = 0; w < sentences[s].size(); ++w) {
      const auto place = std::find(labels.begin(), labels.end(), sentences[s][w]) - labels.begin();
      rows[static_cast<int64_t>(s)][static_cast<int64_t>(w)] = static_cast<int64_t>(place);
    }
  }
  return rows;
}

/// Precision, recall and F1 of all entities, then with their number those of each type that occurs.
json score_entities(const std::vector<Texts>& guesses, const std::vector<Texts>& right) {
  std::set<std::string> all;
  std::set<std::string> types;
  for (const auto* sentences : {&guesses, &right}) {
    for (const auto& sentence : *sentences) {
      all.insert(sentence.begin(), sentence.end());
      for (const auto& entity : text::find_entities(sentence)) types.insert(entity.type);
    }
  }
  const Texts labels(all.begin(), all.end());
  const at::Tensor outputs = rows_of(guesses, labels), targets = rows_of(right, labels);
  const int64_t half = targets.size(0) / 2;
  const auto value = [&](const std::shared_ptr<Metric>& metric) {
    metric->update(outputs.narrow(0, 0, half), targets.narrow(0, 0, half));
    metric->update(outputs.narrow(0, half, outputs.size(0) - half),
                   targets.narrow(0, half, outputs.size(0) - half));
    return metric->compute();
  };
  json found = {value(text::entity_precision(labels)), value(text::entity_recall(labels)),
                value(text::entity_f1(labels))};
  for (const auto& type : types) {
    const text::EntityMetricOptions only{.type = type};
    found.push_back({type, value(text::entity_precision(labels, only)),
                     value(text::entity_recall(labels, only)), value(text::entity_f1(labels, only)),
                     value(text::entity_number(labels, only))});
  }
  return found;
}

json answer(const std::string& name, const Texts& hypotheses, const Texts& references) {
  if (name == "13a" || name == "intl") {
    json tokenized = json::array();
    for (const auto& text : hypotheses) {
      std::string words;
      const std::string spaced =
          name == "13a" ? text::text_counts::tokenize_13a(text) : text::text_counts::tokenize_intl(text);
      for (const auto word : text::text_counts::split_words(spaced))
        (words += words.empty() ? "" : " ") += word;
      tokenized.push_back(words);
    }
    return tokenized;
  }
  if (name == "lower") {
    json lowered = json::array();
    for (const auto& text : hypotheses) lowered.push_back(text::text_counts::lower(text));
    return lowered;
  }
  if (name == "squad") {
    const auto score = text::score_answer(hypotheses.at(0), references);
    return {100 * score.exact, 100 * score.f1};
  }
  const auto words = words_of(name);
  const bool lowercase = words.back() == "lowercase";
  text::BleuOptions bleu{.lowercase = lowercase};
  if (words.size() > 1 && words[1] != "lowercase") bleu.tokenize = words[1];
  const text::ChrfOptions chrf{.word_order = words[0] == "chrf2++" ? 2 : 0, .lowercase = lowercase};
  if (words[0] == "sentence_bleu") return {text::sentence_bleu(hypotheses.at(0), references.at(0), bleu)};
  if (name == "sentence_chrf") return {text::sentence_chrf(hypotheses.at(0), references.at(0))};
  struct Scored {
    std::shared_ptr<text::TextMetric> metric;
    std::function<double()> plain;
  };
  const auto find = [&]() -> Scored {
    if (words[0] == "bleu")
      return {text::bleu(bleu), [&] { return text::corpus_bleu(hypotheses, references, bleu); }};
    if (words[0] == "chrf2" || words[0] == "chrf2++")
      return {text::chrf(chrf), [&] { return text::corpus_chrf(hypotheses, references, chrf); }};
    if (name == "torchmetrics_bleu")
      return {text::torchmetrics_bleu(), [&] { return text::torchmetrics_bleu(hypotheses, references); }};
    if (name == "cer")
      return {text::char_error_rate(), [&] { return text::char_error_rate(hypotheses, references); }};
    if (name == "wer")
      return {text::word_error_rate(), [&] { return text::word_error_rate(hypotheses, references); }};
    throw ValueError("unknown score " + name);
  };
  const auto [metric, plain] = find();
  const size_t half = hypotheses.size() / 2;
  metric->update(std::span(hypotheses).first(half), std::span(references).first(half));
  metric->update(std::span(hypotheses).subspan(half), std::span(references).subspan(half));
  if (metric->name() != words[0]) throw ValueError("the metric is called " + metric->name());
  return {plain(), metric->compute()};
}

}  // namespace

int main() {
  return run_main("text_scores_runner", [&] {
    for (std::string line; std::getline(std::cin, line);) {
      const json question = json::parse(line);
      const std::string name = question.at(0);
      std::cout << (name == "entities" ? score_entities(question.at(1), question.at(2))
                                       : answer(name, question.at(1), question.at(2)))
                << "\n";
    }
    return 0;
  });
}
