#include "lockstep/zoo/text/word_level.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/text/utf8.h"
#include "lockstep/zoo/text/word_level_json.h"
#include "lockstep/zoo/text/word_split.h"

namespace lockstep::text {

namespace {

// Looked up by std::string_view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

void check_is_utf8(std::string_view text, const std::string& name) {
  const size_t at = find_invalid_utf8(text);
  if (at == std::string_view::npos) return;
  throw ValueError(fmt::format("{} is not UTF-8: byte {} breaks it; convert it first", name, at));
}

void check_options(const TrainWordLevelOptions& options) {
  const auto& special = options.special_tokens;
  for (auto token = special.begin(); token != special.end(); ++token) {
    if (token->empty()) throw ValueError("a special token of the tokenizer is empty");
    check_is_utf8(*token, "a special token");
    if (std::find(special.begin(), token, *token) != token) {
      throw ValueError(fmt::format("the special token {} is named twice", *token));
    }
  }
  if (std::find(special.begin(), special.end(), options.unk_token) == special.end()) {
    throw ValueError(
        fmt::format("the unk_token {} is none of the special tokens; add it to them", options.unk_token));
  }
  if (options.vocab_size < special.size()) {
    throw ValueError(
        fmt::format("vocab_size is {}, but there are {} special tokens", options.vocab_size, special.size()));
  }
}

StringMap<size_t> count_words(std::span<const std::string> texts) {
  StringMap<size_t> counts;
  for (size_t i = 0; i < texts.size(); ++i) {
    check_is_utf8(texts[i], fmt::format("text {}", i));
    for_each_word(texts[i], [&](std::string_view word) {
      const auto found = counts.find(word);
      if (found == counts.end()) {
        counts.emplace(word, 1);
      } else {
        ++found->second;
      }
    });
  }
  return counts;
}

}  // namespace

struct WordLevelTokenizer::Impl {
  explicit Impl(WordLevelSpec given) : spec(std::move(given)) {
    for (const auto& [token, id] : spec.vocab) add(token, id, false);
    unk_id = ids.find(spec.unk_token)->second;
    words = ids;
    for (const AddedToken& token : spec.added_tokens) {
      add(token.content, token.id, token.special);
      (token.normalized ? later_tokens : first_tokens).add(token.content, token);
    }
  }

  struct Token {
    std::string text;
    bool is_special = false;
  };

  void add(const std::string& token, int32_t id, bool is_special) {
    ids[token] = id;
    if (tokens.size() <= static_cast<size_t>(id)) tokens.resize(static_cast<size_t>(id) + 1);
    tokens[static_cast<size_t>(id)] = Token{token, is_special};
  }
  const Token* token(int64_t id) const {
    if (id < 0 || id >= static_cast<int64_t>(tokens.size()) || !tokens[static_cast<size_t>(id)])
      return nullptr;
    return &*tokens[static_cast<size_t>(id)];
  }

  WordLevelSpec spec;
  StringMap<int32_t> words;                  // the vocabulary alone: what a word of a text may be
  StringMap<int32_t> ids;                    // with the added tokens
  std::vector<std::optional<Token>> tokens;  // by id
  AddedTokenMatcher first_tokens, later_tokens;
  int32_t unk_id = 0;
};

WordLevelTokenizer::WordLevelTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WordLevelTokenizer::WordLevelTokenizer(WordLevelTokenizer&&) noexcept = default;
WordLevelTokenizer& WordLevelTokenizer::operator=(WordLevelTokenizer&&) noexcept = default;
WordLevelTokenizer::~WordLevelTokenizer() = default;

WordLevelTokenizer WordLevelTokenizer::train(std::span<const std::string> texts,
                                             const TrainWordLevelOptions& options) {
  check_options(options);
  const StringMap<size_t> counts = count_words(texts);
  std::vector<std::pair<std::string_view, size_t>> words;
  for (const auto& [word, count] : counts) {
    if (count >= options.min_frequency) words.emplace_back(word, count);
  }
  std::sort(words.begin(), words.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  words.resize(std::min(words.size(), options.vocab_size - options.special_tokens.size()));

  // A word that is a special token too has the word's id, as in the peer's map; the other id stays unused.
  WordLevelSpec spec{.vocab = {}, .unk_token = options.unk_token, .added_tokens = {}};
  const auto first = static_cast<int32_t>(options.special_tokens.size());
  for (int32_t id = 0; id < first; ++id) {
    const std::string& token = options.special_tokens[static_cast<size_t>(id)];
    const auto word =
        std::find_if(words.begin(), words.end(), [&](const auto& entry) { return entry.first == token; });
    const bool is_word = word != words.end();
    const auto own = is_word ? first + static_cast<int32_t>(word - words.begin()) : id;
    if (!is_word) spec.vocab.emplace_back(token, own);
    spec.added_tokens.push_back({.content = token, .id = own});
  }
  for (size_t i = 0; i < words.size(); ++i) {
    spec.vocab.emplace_back(words[i].first, first + static_cast<int32_t>(i));
  }
  std::stable_sort(spec.added_tokens.begin(), spec.added_tokens.end(),
                   [](const auto& a, const auto& b) { return a.id < b.id; });
  return WordLevelTokenizer(std::make_unique<Impl>(std::move(spec)));
}

WordLevelTokenizer WordLevelTokenizer::from_file(const std::filesystem::path& path) {
  return WordLevelTokenizer(std::make_unique<Impl>(read_word_level_json(path)));
}

std::vector<int64_t> WordLevelTokenizer::encode(std::string_view text) const {
  check_is_utf8(text, "text");
  std::vector<int64_t> ids;
  const auto append_token = [&](int32_t id, std::string_view) { ids.push_back(id); };
  const auto append_words = [&](std::string_view part) {
    for_each_word(part, [&](std::string_view word) {
      const auto found = impl_->words.find(word);
      ids.push_back(found == impl_->words.end() ? impl_->unk_id : found->second);
    });
  };
  impl_->first_tokens.split(
      text, [&](std::string_view part) { impl_->later_tokens.split(part, append_words, append_token); },
      append_token);
  return ids;
}

std::string WordLevelTokenizer::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  std::string text;
  bool is_first = true;
  for (const int64_t id : ids) {
    const Impl::Token* const token = impl_->token(id);
    if (token == nullptr || (skip_special_tokens && token->is_special)) continue;
    if (!is_first) text += ' ';
    is_first = false;
    text += token->text;
  }
  return text;
}

int64_t WordLevelTokenizer::vocab_size() const { return static_cast<int64_t>(impl_->tokens.size()); }

std::optional<int64_t> WordLevelTokenizer::token_to_id(std::string_view token) const {
  const auto found = impl_->ids.find(token);
  return found == impl_->ids.end() ? std::nullopt : std::optional<int64_t>(found->second);
}

std::optional<std::string> WordLevelTokenizer::id_to_token(int64_t id) const {
  const Impl::Token* const token = impl_->token(id);
  return token == nullptr ? std::nullopt : std::optional(token->text);
}

void WordLevelTokenizer::save(const std::filesystem::path& path) const {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    throw FileError(
        fmt::format("cannot create directory {}: {}", path.parent_path().string(), error.message()));
  write_file_atomically(path, word_level_json(impl_->spec));
}

}  // namespace lockstep::text
