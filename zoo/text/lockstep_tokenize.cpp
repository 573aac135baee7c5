// What `lockstep tokenize` starts: JSON lines of texts in, JSON lines of token ids out.
//   lockstep-tokenize VOCAB INPUT cased|as-is MAX_LENGTH
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/main.h"
#include "lockstep/tracking/progress/progress_bar.h"
#include "lockstep/zoo/text/bert_tokenizer.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text {
namespace {

struct Options {
  std::filesystem::path vocab;
  std::string input = "-";
  bool cased = false;
  size_t max_length = 0;
};

BertTokenizer load(const Options& options) {
  const bool has_settings =
      options.vocab.extension() == ".json" || std::filesystem::is_directory(options.vocab);
  if (!has_settings) return BertTokenizer::from_file(options.vocab, {.do_lower_case = !options.cased});
  if (options.cased) {
    throw ValueError(
        fmt::format("--cased is for a vocab.txt; {} has its own settings", options.vocab.string()));
  }
  return std::filesystem::is_directory(options.vocab) ? BertTokenizer::from_directory(options.vocab)
                                                      : BertTokenizer::from_file(options.vocab);
}

struct Line {
  std::string text;
  std::optional<std::string> text_pair;
};

Line parse(const std::string& bytes) {
  if (const size_t at = find_invalid_utf8(bytes); at != std::string::npos) {
    throw ValueError(fmt::format("not UTF-8 (byte {})", at));
  }
  const auto json = parse_json(bytes);
  if (!json.is_object()) throw ValueError("expected a JSON object {\"text\": ..., \"text_pair\": ...}");
  const auto string = [&](const char* key) {
    if (!json.at(key).is_string()) throw ValueError(fmt::format("\"{}\" is not a string", key));
    return json.at(key).get<std::string>();
  };
  if (!json.contains("text")) throw ValueError("there is no \"text\"");
  Line line{string("text"), std::nullopt};
  if (json.contains("text_pair") && !json.at("text_pair").is_null()) line.text_pair = string("text_pair");
  return line;
}

void append_list(const char* name, const std::vector<int64_t>& values, std::string& line) {
  line += name;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) line += ", ";
    line += std::to_string(values[i]);
  }
}

std::string render(const Encoding& encoding) {
  std::string line;
  append_list("{\"input_ids\": [", encoding.input_ids, line);
  append_list("], \"token_type_ids\": [", encoding.token_type_ids, line);
  return fmt::format("{}]}}\n", line);
}

int tokenize(const Options& options) {
  const auto tokenizer = load(options);
  const bool from_stdin = options.input == "-";
  const std::string name = from_stdin ? "standard input" : options.input;
  std::ifstream file;
  if (!from_stdin) {
    file.open(options.input);
    if (!file || std::filesystem::is_directory(options.input))
      throw FileError(fmt::format("cannot read {}", name));
  }
  std::ios::sync_with_stdio(false);
  std::istream& input = from_stdin ? std::cin : file;

  ProgressBar bar({.total = from_stdin ? 0 : static_cast<int64_t>(std::filesystem::file_size(options.input)),
                   .label = "tokenize",
                   .unit = "B",
                   .enabled = !from_stdin && ::isatty(STDOUT_FILENO) == 0,
                   .leave = false,
                   .delay = std::chrono::seconds(1)});
  int64_t done = 0;
  std::string bytes;
  for (size_t number = 1; std::getline(input, bytes); ++number) {
    bar.update(done += static_cast<int64_t>(bytes.size()) + 1);
    std::string output;
    try {
      const Line line = parse(bytes);
      output = render(tokenizer.encode(line.text, line.text_pair, options.max_length));
    } catch (const std::exception& error) {
      throw FileError(fmt::format("{}:{}: {}", name, number, error.what()));
    }
    if (std::fwrite(output.data(), 1, output.size(), stdout) != output.size()) break;
  }
  if (input.bad()) throw FileError(fmt::format("cannot read {}", name));
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  // Where SIGPIPE is ignored, a reader that has seen enough (head) is no news either.
  if (errno == EPIPE) return 1;
  throw FileError(std::string("cannot write to standard output: ") + std::strerror(errno));
}

}  // namespace
}  // namespace lockstep::text

int main(int argc, char** argv) {
  return lockstep::run_main("lockstep", [&] {
    if (argc != 5) throw lockstep::ValueError("usage: lockstep-tokenize VOCAB INPUT cased|as-is MAX_LENGTH");
    return lockstep::text::tokenize({.vocab = argv[1],
                                     .input = argv[2],
                                     .cased = std::string(argv[3]) == "cased",
                                     .max_length = std::stoull(argv[4])});
  });
}
