#include "lockstep/zoo/text/bert_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/text/added_tokens.h"
#include "lockstep/zoo/text/char_walk.h"
#include "lockstep/zoo/text/placed_words.h"
#include "lockstep/zoo/text/tokenizer_spec.h"
#include "lockstep/zoo/text/truncation.h"
#include "lockstep/zoo/text/word_piece.h"

namespace lockstep::text {

namespace {

constexpr size_t kNoLimit = SIZE_MAX;

// Sink of walk_characters: collects a word, then appends its ids. A word longer than the buffer is unknown
// whatever is in it, so the buffer never grows.
class WordEncoder {
 public:
  WordEncoder(const WordPiece& model, size_t max_chars, size_t limit, std::vector<int64_t>& ids)
      : model_(model), max_chars_(max_chars), limit_(limit), ids_(ids) {
    word_.resize(max_chars * 4);
  }

  void word_bytes(const CharTable& table, const char* bytes, size_t n) {
    chars_ += n;
    if (chars_ > max_chars_) return;
    for (size_t i = 0; i < n; ++i) word_[size_ + i] = table.ascii_word(bytes[i]);
    size_ += n;
  }
  void word_char(char32_t code) {
    if (++chars_ > max_chars_) return;
    size_ = static_cast<size_t>(put_code_point(&word_[size_], code) - word_.data());
  }
  void space(char32_t) { end_word(); }
  void punctuation(char32_t code) {
    end_word();
    word_char(code);
    end_word();
  }
  void end_word() {
    if (chars_ > max_chars_) {
      ids_.push_back(model_.unk_id());
    } else {
      model_.append_ids({word_.data(), size_}, ids_);
    }
    size_ = 0;
    chars_ = 0;
  }
  bool full() const { return ids_.size() >= limit_; }

 private:
  const WordPiece& model_;
  const size_t max_chars_;
  const size_t limit_;
  std::vector<int64_t>& ids_;
  std::string word_;
  size_t size_ = 0;
  size_t chars_ = 0;
};

// Sink of walk_characters: the normalized text.
struct TextWriter {
  std::string text;

  void word_bytes(const CharTable& table, const char* bytes, size_t n) {
    for (size_t i = 0; i < n; ++i) text.push_back(table.ascii_word(bytes[i]));
  }
  void word_char(char32_t code) { append_code_point(text, code); }
  void space(char32_t code) { append_code_point(text, code); }
  void punctuation(char32_t code) { append_code_point(text, code); }
  bool full() const { return false; }
};

std::string normalize(const CharTable& table, std::string_view text) {
  TextWriter writer;
  walk_characters(table, text, writer);
  return std::move(writer.text);
}

struct SpecialIds {
  int32_t unk, cls, sep, pad;
};

SpecialIds special_ids(const TokenizerSpec& spec) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (const auto& [token, id] : spec.vocab) ids.emplace(token, id);
  // A word's pieces are looked for in the vocabulary alone, so its unknown token must be there.
  const auto required = [&](const std::string& token, const char* name) {
    const auto found = ids.find(token);
    if (found != ids.end()) return found->second;
    throw FileError(
        fmt::format("{} has no {} ({}), which BERT's tokenizer needs; is it the vocabulary of a BERT model?",
                    spec.source.string(), token, name));
  };
  const int32_t unk = required(spec.unk_token, "unk_token");
  for (const auto& token : spec.added_tokens) ids.emplace(token.content, token.id);
  return {unk, required(spec.cls_token, "cls_token"), required(spec.sep_token, "sep_token"),
          required(spec.pad_token, "pad_token")};
}

void check_utf8(std::string_view text, std::string_view name) {
  const size_t at = find_invalid_utf8(text);
  if (at == std::string_view::npos) return;
  throw ValueError(fmt::format("{} is not UTF-8: byte {} breaks it; convert it first", name, at));
}

/// How many tokens of texts fit beside the special ones. Throws ValueError if these alone are too many.
size_t compute_room(size_t max_length, size_t special_count, const char* what) {
  if (max_length == 0) return kNoLimit;
  if (max_length < special_count) {
    throw ValueError(fmt::format("max_length is {}, but the special tokens of {} alone are {}", max_length,
                                 what, special_count));
  }
  return max_length - special_count;
}

}  // namespace

struct BertTokenizer::Impl {
  explicit Impl(TokenizerSpec given)
      : spec(std::move(given)),
        special(special_ids(spec)),
        model(spec.vocab, special.unk, spec.continuing_subword_prefix),
        characters(CharTable::get(spec.normalizer())),
        normalized_characters(CharTable::get({false, false, false, false})) {
    for (const auto& entry : spec.vocab) vocab_size = std::max<int64_t>(vocab_size, entry.second + 1);
    for (const auto& token : spec.added_tokens) {
      vocab_size = std::max<int64_t>(vocab_size, token.id + 1);
      if (token.normalized) {
        normalized_tokens.add(normalize(characters, token.content), token);
      } else {
        literal_tokens.add(token.content, token);
      }
    }
  }

  /// Appends the ids of one text; it may stop when `ids` holds `limit`.
  void append_ids(std::string_view text, size_t limit, std::vector<int64_t>& ids) const {
    WordEncoder words(model, spec.max_input_chars_per_word, limit, ids);
    const auto append_token = [&](int32_t id, std::string_view) { ids.push_back(id); };
    const auto append_words = [&](const CharTable& table, std::string_view part) {
      walk_characters(table, part, words);
      words.end_word();
    };
    literal_tokens.split(
        text,
        [&](std::string_view part) {
          if (normalized_tokens.empty()) return append_words(characters, part);
          normalized_tokens.split(
              normalize(characters, part),
              [&](std::string_view rest) { append_words(normalized_characters, rest); }, append_token);
        },
        append_token);
  }

  /// As append_ids() without a limit, with places.
  PlacedTokens place_tokens(std::string_view text) const {
    PlacedTokens tokens;
    const auto place_words = [&](const CharTable& table, std::string_view part, const Origins& origins) {
      PlacedWordEncoder words(model, spec.max_input_chars_per_word, origins, tokens);
      walk_characters(table, part, words);
      words.end_word();
    };
    const auto place_token = [&](const Origins& origins) {
      return [&tokens, &origins](int32_t id, std::string_view part) {
        tokens.add(id, origins.span(part.data(), part.data() + part.size()));
      };
    };
    const Origins in_text(text);
    literal_tokens.split(
        text,
        [&](std::string_view part) {
          if (normalized_tokens.empty()) return place_words(characters, part, in_text);
          PlacedTextWriter writer(in_text);
          walk_characters(characters, part, writer);
          const Origins in_normalized(writer.text(), writer.spans());
          normalized_tokens.split(
              writer.text(),
              [&](std::string_view rest) { place_words(normalized_characters, rest, in_normalized); },
              place_token(in_normalized));
        },
        place_token(in_text));
    return tokens;
  }

  TokenizerSpec spec;
  SpecialIds special;
  WordPiece model;
  const CharTable& characters;
  const CharTable& normalized_characters;  // splits words and changes nothing
  AddedTokenMatcher literal_tokens;
  AddedTokenMatcher normalized_tokens;
  int64_t vocab_size = 0;
};

BertTokenizer::BertTokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BertTokenizer::BertTokenizer(BertTokenizer&&) noexcept = default;
BertTokenizer& BertTokenizer::operator=(BertTokenizer&&) noexcept = default;
BertTokenizer::~BertTokenizer() = default;

BertTokenizer BertTokenizer::from_file(const std::filesystem::path& path, BertTokenizerOptions options) {
  TokenizerSpec spec;
  if (path.extension() == ".json") {
    spec = read_tokenizer_json(path);
  } else {
    spec.do_lower_case = options.do_lower_case;
    spec.strip_accents = options.strip_accents;
    spec.tokenize_chinese_chars = options.tokenize_chinese_chars;
    read_vocab_txt(path, spec);
    add_special_tokens(spec);
  }
  return BertTokenizer(std::make_unique<Impl>(std::move(spec)));
}

BertTokenizer BertTokenizer::from_directory(const std::filesystem::path& directory) {
  return BertTokenizer(std::make_unique<Impl>(read_tokenizer_directory(directory)));
}

Encoding BertTokenizer::encode(std::string_view text, std::optional<std::string_view> text_pair,
                               size_t max_length) const {
  const size_t room =
      text_pair ? compute_room(max_length, 3, "a pair") : compute_room(max_length, 2, "a text");
  check_utf8(text, "text");

  Encoding encoding;
  auto& ids = encoding.input_ids;
  ids.push_back(impl_->special.cls);
  if (!text_pair) {
    const size_t with_cls = room == kNoLimit ? kNoLimit : room + 1;
    impl_->append_ids(text, with_cls, ids);
    ids.resize(std::min(ids.size(), with_cls));
    ids.push_back(impl_->special.sep);
    encoding.token_type_ids.assign(ids.size(), 0);
    return encoding;
  }
  check_utf8(*text_pair, "text_pair");
  std::vector<int64_t> pair_ids;
  impl_->append_ids(text, kNoLimit, ids);
  impl_->append_ids(*text_pair, kNoLimit, pair_ids);
  const auto [first, second] = longest_first(ids.size() - 1, pair_ids.size(), room);
  ids.resize(1 + first);
  ids.push_back(impl_->special.sep);
  encoding.token_type_ids.assign(ids.size(), 0);
  ids.insert(ids.end(), pair_ids.begin(), pair_ids.begin() + static_cast<std::ptrdiff_t>(second));
  ids.push_back(impl_->special.sep);
  encoding.token_type_ids.resize(ids.size(), 1);
  return encoding;
}

TextTokens BertTokenizer::tokenize(std::string_view text) const {
  check_utf8(text, "text");
  PlacedTokens placed = impl_->place_tokens(text);
  TextTokens tokens{.ids = std::move(placed.ids)};
  // How many characters begin before each byte.
  std::vector<int64_t> before(text.size() + 1);
  for (size_t byte = 0; byte < text.size(); ++byte) {
    before[byte + 1] = before[byte] + ((static_cast<unsigned char>(text[byte]) & 0xC0) != 0x80 ? 1 : 0);
  }
  for (const ByteSpan& span : placed.spans)
    tokens.spans.push_back({.begin = before[span.begin], .end = before[span.end]});
  return tokens;
}

WordsEncoding BertTokenizer::encode_words(std::span<const std::string> words, size_t max_length) const {
  const size_t room = compute_room(max_length, 2, "a text");
  WordsEncoding encoding;
  auto& ids = encoding.encoding.input_ids;
  const auto add_special = [&](int32_t id) {
    ids.push_back(id);
    encoding.word_ids.push_back(WordsEncoding::kNoWord);
  };
  add_special(impl_->special.cls);
  const size_t limit = room == kNoLimit ? kNoLimit : room + 1;
  for (size_t word = 0; word < words.size() && ids.size() < limit; ++word) {
    check_utf8(words[word], fmt::format("word {}", word));
    impl_->append_ids(words[word], limit, ids);
    ids.resize(std::min(ids.size(), limit));
    encoding.word_ids.resize(ids.size(), static_cast<int64_t>(word));
  }
  add_special(impl_->special.sep);
  encoding.encoding.token_type_ids.assign(ids.size(), 0);
  return encoding;
}

int64_t BertTokenizer::vocab_size() const { return impl_->vocab_size; }

int64_t BertTokenizer::pad_token_id() const { return impl_->special.pad; }
int64_t BertTokenizer::cls_token_id() const { return impl_->special.cls; }
int64_t BertTokenizer::sep_token_id() const { return impl_->special.sep; }

void BertTokenizer::save(const std::filesystem::path& directory) const {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error)
    throw FileError(fmt::format("cannot create directory {}: {}", directory.string(), error.message()));
  for (const auto& [name, text] : files()) write_file_atomically(directory / name, text);
}

std::map<std::string, std::string> BertTokenizer::files() const { return tokenizer_files(impl_->spec); }

}  // namespace lockstep::text
