// Answers places_parity_test.py: a line of JSON for each line of JSON.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/main.h"
#include "lockstep/zoo/text/bert_tokenizer.h"
#include "lockstep/zoo/text/truncation.h"

namespace {

using nlohmann::json;
using namespace lockstep::text;

/// {"text"}: its tokens and their places. {"words", "max_length"}: ids and words. {"windows": [tokens, room, stride]}.
json answer(const BertTokenizer& tokenizer, const json& question) {
  if (question.contains("text")) {
    const auto tokens = tokenizer.tokenize(question["text"].get<std::string>());
    json spans = json::array();
    for (const auto& span : tokens.spans) spans.push_back({span.begin, span.end});
    return {{"ids", tokens.ids}, {"spans", spans}};
  }
  if (question.contains("words")) {
    const auto words = question["words"].get<std::vector<std::string>>();
    const auto found = tokenizer.encode_words(words, question["max_length"].get<size_t>());
    return {{"ids", found.encoding.input_ids},
            {"types", found.encoding.token_type_ids},
            {"word_ids", found.word_ids}};
  }
  const auto& windows = question["windows"];
  return overlapping_windows(windows[0], windows[1], windows[2]);
}

}  // namespace

int main(int, char** argv) {
  return lockstep::run_main("places_runner", [&] {
    const auto tokenizer = BertTokenizer::from_directory(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << answer(tokenizer, json::parse(line)).dump() << '\n';
    }
    return 0;
  });
}
