#include "lockstep/zoo/tasks/translator.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"

namespace lockstep::tasks {

std::string tokenizer_file_name(const std::string& language) {
  return fmt::format("tokenizer_{}.json", language);
}

TranslationTokenizers TranslationTokenizers::from_files(const std::filesystem::path& source_file,
                                                        const std::string& source_language,
                                                        const std::filesystem::path& target_file,
                                                        const std::string& target_language) {
  const auto load = [](const std::filesystem::path& file) {
    return std::make_shared<const text::WordLevelTokenizer>(text::WordLevelTokenizer::from_file(file));
  };
  TranslationTokenizers all{.source_language = source_language,
                            .target_language = target_language,
                            .source_file = source_file,
                            .target_file = target_file,
                            .source = load(source_file),
                            .target = load(target_file),
                            .special = {}};
  all.special = SpecialTokens::of(*all.source, source_file);
  const auto other = SpecialTokens::of(*all.target, target_file);
  if (std::tie(all.special.unknown, all.special.padding, all.special.start, all.special.end) !=
      std::tie(other.unknown, other.padding, other.start, other.end)) {
    throw FileError(
        fmt::format("{} and {} give [UNK], [PAD], [SOS] and [EOS] different ids; train them alike",
                    source_file.string(), target_file.string()));
  }
  return all;
}

TranslationTokenizers TranslationTokenizers::from_directory(const std::filesystem::path& directory) {
  const auto path = directory / "translation.json";
  if (std::filesystem::is_directory(directory) && !std::filesystem::exists(path)) {
    throw FileError(
        fmt::format("{} has no translation.json: it is no model of translate; another recipe has written it",
                    directory.string()));
  }
  const auto json = parse_json(read_file(path));
  const auto language = [&](const char* field) {
    if (!json.is_object() || !json.contains(field) || !json[field].is_string())
      throw FileError(fmt::format("{}: {} must be the name of a language", path.string(), field));
    return json[field].get<std::string>();
  };
  const auto source = language("lang_src"), target = language("lang_tgt");
  return from_files(directory / tokenizer_file_name(source), source, directory / tokenizer_file_name(target),
                    target);
}

std::map<std::string, std::string> TranslationTokenizers::files() const {
  const nlohmann::ordered_json json{{"lang_src", source_language}, {"lang_tgt", target_language}};
  return {{"translation.json", json.dump(2) + "\n"},
          {tokenizer_file_name(source_language), read_file(source_file)},
          {tokenizer_file_name(target_language), read_file(target_file)}};
}

void TranslationTokenizers::check(const models::TransformerConfig& config) const {
  const auto fits = [](const std::filesystem::path& file, int64_t tokens, int64_t expected,
                       const char* field) {
    if (tokens == expected) return;
    throw FileError(fmt::format("{} has {} tokens, the model's {} is {}: it is not this model's tokenizer",
                                file.string(), tokens, field, expected));
  };
  fits(source_file, source->vocab_size(), config.source_vocab_size, "source_vocab_size");
  fits(target_file, target->vocab_size(), config.target_vocab_size, "target_vocab_size");
  if (special.padding != config.pad_token_id) {
    throw FileError(fmt::format("{} gives [PAD] the id {}, the model's pad_token_id is {}",
                                source_file.string(), special.padding, config.pad_token_id));
  }
}

std::string text_of(const std::vector<int64_t>& ids, const TranslationTokenizers& tokenizers) {
  return detokenize(tokenizers.target->decode(ids));
}

Translator::Translator(models::Transformer model, TranslationTokenizers tokenizers)
    : generator_(std::move(model)), tokenizers_(std::move(tokenizers)) {
  tokenizers_.check(generator_.model()->config());
}

Translator Translator::from_directory(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory)) {
    throw FileError(fmt::format(
        "there is no directory {}; expected one that a training of translate has written (its output_dir)",
        directory.string()));
  }
  auto model = models::load_transformer(directory);
  return {std::move(model), TranslationTokenizers::from_directory(directory)};
}

int64_t Translator::most_words() const { return generator_.model()->config().seq_len - 2; }

Translations Translator::translate(const std::vector<std::string>& texts, TranslateOptions options) {
  options.generate.start_token_id = tokenizers_.special.start;
  options.generate.eos_token_id = tokenizers_.special.end;
  Translations all{.texts = std::vector<std::string>(texts.size())};
  std::vector<std::vector<int64_t>> sources;
  std::vector<size_t> places;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<int64_t> ids;
    try {
      ids = encode_source(texts[i], *tokenizers_.source, tokenizers_.special);
    } catch (const ValueError& error) {
      throw ValueError(fmt::format("text {}: {}", i + 1, error.what()));
    }
    const auto words = static_cast<int64_t>(ids.size()) - 2;
    if (words > most_words()) {
      auto what = fmt::format("text {} has {} words; the model takes {}", i + 1, words, most_words());
      if (options.overlong == Overlong::error) throw ValueError(what + ". Cut it into sentences");
      if (all.overlong.empty()) all.first_overlong = std::move(what);
      all.overlong.push_back(i);
      if (options.overlong == Overlong::skip) continue;
      ids.resize(static_cast<size_t>(most_words()) + 1);  // with the start
      ids.push_back(tokenizers_.special.end);
    }
    if (words == 0) continue;
    sources.push_back(std::move(ids));
    places.push_back(i);
  }
  const auto result = generator_.generate_all(sources, options.batch_size, options.generate);
  for (size_t i = 0; i < places.size(); ++i)
    all.texts[places[i]] = text_of(result.sentences[i].ids, tokenizers_);
  return all;
}

}  // namespace lockstep::tasks
