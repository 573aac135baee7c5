#include "lockstep/zoo/text/build_vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/zoo/text/char_walk.h"
#include "lockstep/zoo/text/utf8.h"

namespace lockstep::text {

namespace {

using WordCounts = std::unordered_map<std::string, size_t>;

// Sink of walk_characters: counts words and their characters.
class Counter {
 public:
  void word_bytes(const CharTable& table, const char* bytes, size_t n) {
    for (size_t i = 0; i < n; ++i) word_char(static_cast<char32_t>(table.ascii_word(bytes[i])));
  }
  void word_char(char32_t code) {
    std::string character;
    append_code_point(character, code);
    ++characters[character];
    word_ += character;
  }
  void space(char32_t) { end_word(); }
  void punctuation(char32_t code) {
    end_word();
    word_char(code);
    end_word();
  }
  void end_word() {
    if (!word_.empty()) ++words[word_];
    word_.clear();
  }
  bool full() const { return false; }

  WordCounts words, characters;

 private:
  std::string word_;
};

// Most frequent first, and in byte order among equals.
std::vector<std::pair<std::string, size_t>> ranked(const WordCounts& counts) {
  std::vector<std::pair<std::string, size_t>> out(counts.begin(), counts.end());
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  return out;
}

}  // namespace

std::vector<std::string> build_vocab(const std::vector<std::string_view>& texts, BuildVocabOptions options) {
  const auto& table =
      CharTable::get({.strip_accents = options.do_lower_case, .lowercase = options.do_lower_case});
  Counter counter;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (const size_t at = find_invalid_utf8(texts[i]); at != std::string_view::npos) {
      throw ValueError(fmt::format("text {} is not UTF-8: byte {} breaks it; convert it first", i, at));
    }
    walk_characters(table, texts[i], counter);
    counter.end_word();
  }
  std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  const auto add = [&](std::string token) {
    if (tokens.size() < options.vocab_size) tokens.push_back(std::move(token));
  };
  for (const auto& [character, count] : ranked(counter.characters)) {
    add(character);
    add("##" + character);
  }
  for (const auto& [word, count] : ranked(counter.words)) {
    if (count >= options.min_frequency && !counter.characters.contains(word)) add(word);
  }
  return tokens;
}

void write_vocab(const std::filesystem::path& path, const std::vector<std::string>& tokens) {
  std::string content;
  for (const auto& token : tokens) content += token + "\n";
  write_file_atomically(path, content);
}

}  // namespace lockstep::text
