// Scores texts for comparison with the peers'. Each line of standard input is a JSON list [score, hypotheses,
// references]; a line of output has the values by the plain function and by the metric, which takes its samples
// in two batches; of "13a" the tokenized hypotheses.
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/zoo/text/metrics/text_metric.h"
#include "lockstep/zoo/text/metrics/text_scores.h"
#include "lockstep/zoo/text/metrics/text_words.h"

namespace {

using namespace lockstep;
using nlohmann::json;
using Texts = std::vector<std::string>;

json answer(const std::string& name, const Texts& hypotheses, const Texts& references) {
  if (name == "13a") {
    json tokenized = json::array();
    for (const auto& text : hypotheses) {
      std::string words;
      const std::string spaced = text::text_counts::tokenize_13a(text);
      for (const auto word : text::text_counts::split_words(spaced))
        (words += words.empty() ? "" : " ") += word;
      tokenized.push_back(words);
    }
    return tokenized;
  }
  if (name == "sentence_bleu") return {text::sentence_bleu(hypotheses.at(0), references.at(0))};
  if (name == "sentence_chrf") return {text::sentence_chrf(hypotheses.at(0), references.at(0))};
  using Function = double (*)(std::span<const std::string>, std::span<const std::string>);
  using Factory = std::shared_ptr<text::TextMetric> (*)();
  const std::map<std::string, std::pair<Function, Factory>> scores = {
      {"bleu", {text::corpus_bleu, text::bleu}},
      {"chrf2", {text::corpus_chrf, text::chrf}},
      {"torchmetrics_bleu", {text::torchmetrics_bleu, text::torchmetrics_bleu}},
      {"cer", {text::char_error_rate, text::char_error_rate}},
      {"wer", {text::word_error_rate, text::word_error_rate}}};
  const auto found = scores.find(name);
  if (found == scores.end()) throw ValueError("unknown score " + name);
  const auto metric = found->second.second();
  const size_t half = hypotheses.size() / 2;
  metric->update(std::span(hypotheses).first(half), std::span(references).first(half));
  metric->update(std::span(hypotheses).subspan(half), std::span(references).subspan(half));
  if (metric->name() != name) throw ValueError("the metric is called " + metric->name());
  return {found->second.first(hypotheses, references), metric->compute()};
}

}  // namespace

int main() {
  return run_main("text_scores_runner", [&] {
    for (std::string line; std::getline(std::cin, line);) {
      const json question = json::parse(line);
      std::cout << answer(question.at(0), question.at(1), question.at(2)) << "\n";
    }
    return 0;
  });
}
