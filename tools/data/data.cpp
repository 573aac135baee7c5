// `lockstep data`: makes data sets ready for training.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "tools/data/fetch.h"
#include "tools/data/icons32.h"
#include "tools/data/lexical_nli.h"
#include "tools/data/libreoffice_help.h"
#include "tools/data/sentiment.h"
#include "tools/subcommands.h"

namespace lockstep::tools {
namespace {

struct Part {
  std::string name, file;
};

const std::array<Part, 4> known_parts = {{{"movie", "movieReviewSnippets_GroundTruth.txt"},
                                          {"amazon", "amazonReviewSnippets_GroundTruth.txt"},
                                          {"tweets", "tweets_GroundTruth.txt"},
                                          {"nyt", "nytEditorialSnippets_GroundTruth.txt"}}};

constexpr std::array<std::pair<Split, const char*>, 3> split_names = {
    {{Split::train, "train"}, {Split::validation, "validation"}, {Split::test, "test"}}};

struct SentimentArguments {
  std::filesystem::path input, output_dir;
  std::vector<std::string> parts;
  double min_rating = 0.5;
};

std::vector<Part> choose_parts(const SentimentArguments& arguments) {
  for (const auto& name : arguments.parts) {
    if (std::none_of(known_parts.begin(), known_parts.end(),
                     [&](const auto& part) { return part.name == name; })) {
      throw ValueError(fmt::format("unknown part '{}'; expected movie, amazon, tweets or nyt", name));
    }
  }
  std::vector<Part> parts;
  for (const auto& part : known_parts) {
    const bool wanted = arguments.parts.empty() ? std::filesystem::exists(arguments.input / part.file)
                                                : std::find(arguments.parts.begin(), arguments.parts.end(),
                                                            part.name) != arguments.parts.end();
    if (wanted) parts.push_back(part);
  }
  if (parts.empty()) {
    throw FileError(
        fmt::format("{} has no *_GroundTruth.txt; scripts/fetch_demo_data fetches them into .data/vader",
                    arguments.input.string()));
  }
  return parts;
}

void print_counts(const SentimentCorpus& corpus, const std::vector<Part>& parts) {
  const auto line = [&](const std::string& part, Split split, const char* name) {
    const auto& examples = corpus.split(split);
    const auto count = [&](bool positive) {
      return std::count_if(examples.begin(), examples.end(), [&](const auto& example) {
        return example.positive == positive && (part == "all" || example.source == part);
      });
    };
    fmt::print("{:8}{:12}{:>9}{:>10}{:>8}\n", part, name, count(true), count(false),
               count(true) + count(false));
  };
  fmt::print("{:8}{:12}{:>9}{:>10}{:>8}\n", "part", "split", "positive", "negative", "rows");
  for (const auto& part : parts) {
    for (const auto& [split, name] : split_names) line(part.name, split, name);
  }
  if (parts.size() == 1) return;
  for (const auto& [split, name] : split_names) line("all", split, name);
}

void write_splits(const std::filesystem::path& directory,
                  const std::vector<std::pair<std::string, std::string>>& csv_of_split) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw FileError(fmt::format("cannot create {}: {}", directory.string(), error.message()));
  for (const auto& [name, csv] : csv_of_split) write_file_atomically(directory / (name + ".csv"), csv);
}

int make_sentiment(const SentimentArguments& arguments) {
  SentimentCorpus corpus(arguments.min_rating);
  const auto parts = choose_parts(arguments);
  for (const auto& part : parts) {
    const auto path = arguments.input / part.file;
    corpus.add(part.name, parse_ratings(read_text_file(path), path.string()));
  }
  for (const auto& [split, name] : split_names) {
    if (corpus.split(split).empty()) {
      throw ValueError(
          fmt::format("too few sentences with a rating of {} or more: nothing is left for {}.csv",
                      arguments.min_rating, name));
    }
  }
  std::vector<std::pair<std::string, std::string>> files;
  for (const auto& [split, name] : split_names) files.emplace_back(name, sentiment_csv(corpus.split(split)));
  write_splits(arguments.output_dir, files);
  print_counts(corpus, parts);
  fmt::print("left out: {} neutral (rating nearer to 0 than {}), {} duplicates\nwritten to {}\n",
             corpus.neutral(), arguments.min_rating, corpus.duplicates(), arguments.output_dir.string());
  return 0;
}

struct LexicalArguments {
  std::filesystem::path input = "/usr/share/wordnet", output_dir;
  size_t pairs_per_label = 0;
};

int make_lexical_nli(const LexicalArguments& arguments) {
  std::array<std::vector<LexicalPair>, 3> splits;
  for (const std::string part : {"noun", "verb"}) {
    const auto path = arguments.input / ("data." + part);
    if (!std::filesystem::exists(path)) {
      throw FileError(fmt::format(
          "{} is not there; WordNet's files are in Debian's package wordnet-base (apt-get install "
          "wordnet-base), or give their directory as --input",
          path.string()));
    }
    const auto synsets = parse_synsets(read_text_file(path), path.string());
    for (auto& pair : lexical_pairs(synsets, part, arguments.pairs_per_label)) {
      splits[static_cast<size_t>(split_of(pair.synset))].push_back(std::move(pair));
    }
  }
  std::vector<std::pair<std::string, std::string>> files;
  std::string table = fmt::format("{:12}{:>12}{:>10}{:>15}{:>8}\n", "split", "entailment", "neutral",
                                  "contradiction", "rows");
  for (const auto& [split, name] : split_names) {
    const auto& pairs = splits[static_cast<size_t>(split)];
    if (pairs.empty()) throw ValueError(fmt::format("too few pairs: nothing is left for {}.csv", name));
    const auto count = [&](std::string_view label) {
      return std::count_if(pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.label == label; });
    };
    table += fmt::format("{:12}{:>12}{:>10}{:>15}{:>8}\n", name, count("entailment"), count("neutral"),
                         count("contradiction"), pairs.size());
    files.emplace_back(name, lexical_csv(pairs));
  }
  write_splits(arguments.output_dir, files);
  fmt::print("{}generated from a lexicon, not written by people: WordNet, {}\nwritten to {}\n", table,
             arguments.input.string(), arguments.output_dir.string());
  return 0;
}

void add_lexical_nli(CommandLine data, Action& action) {
  auto lexical = data.add_subcommand(
      "lexical-nli",
      "Pairs of words, generated from WordNet -> train.csv, validation.csv, test.csv (premise, hypothesis, label, "
      "synset): a hypernym is entailment, an antonym contradiction, a sister term neutral");
  const auto words = std::make_shared<LexicalArguments>();
  lexical
      .add_option("--input", words->input,
                  "Directory with data.noun and data.verb, as of Debian's wordnet-base")
      .with_default()
      .type_name("DIR");
  lexical.add_option("--output-dir", words->output_dir, "Directory to write to").required().type_name("DIR");
  lexical
      .add_option("--pairs-per-label", words->pairs_per_label,
                  "Pairs of each label and part of speech at most; 0: as many as there are of the rarest")
      .with_default();
  lexical.callback([&action, words] { action = [words] { return make_lexical_nli(*words); }; });
}

void add_libreoffice_help(CommandLine data, Action& action) {
  auto help = data.add_subcommand(
      "libreoffice-help",
      "LibreOffice's help in two languages -> train, validation and test, each as two files of aligned lines");
  const auto arguments = std::make_shared<LibreOfficeHelpArguments>();
  help.add_option("--languages", arguments->languages, "Two languages, source first: en-US,it")
      .required()
      .with_commas();
  help.add_option("--output-dir", arguments->output_dir, "Directory to write to").required().type_name("DIR");
  help.add_option("--input", arguments->input,
                  "Directory with unpacked packages, in place of fetching them with apt-get")
      .type_name("DIR");
  help.callback([&action, arguments] { action = [arguments] { return make_libreoffice_help(*arguments); }; });
}

}  // namespace

void add_data(CommandLine app, Action& action) {
  auto data = app.add_subcommand("data", "Makes data sets ready for training");
  data.require_subcommand();
  add_fetch(data, action);
  add_icons32(data, action);

  auto sentiment = data.add_subcommand(
      "sentiment",
      "Sentences rated by people -> train.csv, validation.csv, test.csv (text, label, source, document)");
  const auto arguments = std::make_shared<SentimentArguments>();
  sentiment.add_option("--input", arguments->input, "Directory with *_GroundTruth.txt")
      .required()
      .type_name("DIR");
  sentiment.add_option("--output-dir", arguments->output_dir, "Directory to write to")
      .required()
      .type_name("DIR");
  sentiment
      .add_option("--parts", arguments->parts, "movie, amazon, tweets, nyt or several with commas between")
      .with_commas()
      .default_text("all that exist");
  sentiment
      .add_option("--min-rating", arguments->min_rating, "Leave out sentences rated nearer to 0 than this")
      .with_default();
  sentiment.callback([&action, arguments] { action = [arguments] { return make_sentiment(*arguments); }; });
  add_libreoffice_help(data, action);
  add_lexical_nli(data, action);
}

}  // namespace lockstep::tools
