// Runs a WordLevelTokenizer for the parity test. Texts come from standard input, a JSON string a line.
//   word_level_runner train FILE OPTIONS   trains, writes FILE; OPTIONS: a JSON object of TrainWordLevelOptions' fields
//   word_level_runner encode FILE          prints a JSON list of ids a line
//   word_level_runner decode FILE          lists of ids in, JSON strings out, with and without special tokens
//   word_level_runner copy FILE TARGET     reads and writes
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"
#include "lockstep/zoo/text/word_level.h"

namespace {

using lockstep::text::WordLevelTokenizer;
using nlohmann::json;

int run(const std::vector<std::string>& arguments) {
  const std::string& what = arguments.at(0);
  if (what == "copy") {
    WordLevelTokenizer::from_file(arguments.at(1)).save(arguments.at(2));
    return 0;
  }
  std::vector<json> lines;
  for (std::string line; std::getline(std::cin, line);) lines.push_back(json::parse(line));
  if (what == "train") {
    const json given = json::parse(arguments.at(2));
    lockstep::text::TrainWordLevelOptions options;
    options.vocab_size = given.value("vocab_size", options.vocab_size);
    options.min_frequency = given.value("min_frequency", options.min_frequency);
    options.special_tokens = given.value("special_tokens", options.special_tokens);
    options.unk_token = given.value("unk_token", options.unk_token);
    const std::vector<std::string> texts(lines.begin(), lines.end());
    WordLevelTokenizer::train(texts, options).save(arguments.at(1));
    return 0;
  }
  const auto tokenizer = WordLevelTokenizer::from_file(arguments.at(1));
  for (const json& line : lines) {
    if (what == "encode") {
      std::cout << json(tokenizer.encode(line.get<std::string>())) << "\n";
    } else if (what == "decode") {
      const auto ids = line.get<std::vector<int64_t>>();
      std::cout << json({tokenizer.decode(ids), tokenizer.decode(ids, false)}) << "\n";
    } else {
      throw lockstep::ValueError("word_level_runner: unknown task " + what);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("word_level_runner", [&] { return run({argv + 1, argv + argc}); });
}
