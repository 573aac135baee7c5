#include "lockstep/zoo/text/word_piece.h"

namespace lockstep::text {
namespace {

using Entries = std::vector<std::pair<std::string_view, int32_t>>;

// The tokens that start with `prefix` and are longer, without it.
Entries pieces_after(const WordPiece::Vocab& vocab, const std::string& prefix) {
  Entries entries;
  for (const auto& [token, id] : vocab) {
    const std::string_view text = token;
    if (text.size() > prefix.size() && text.starts_with(prefix)) {
      entries.emplace_back(text.substr(prefix.size()), id);
    }
  }
  return entries;
}

}  // namespace

WordPiece::WordPiece(const Vocab& vocab, int32_t unk_id, const std::string& continuing_subword_prefix)
    : starting_(pieces_after(vocab, "")),
      continuing_(pieces_after(vocab, continuing_subword_prefix)),
      unk_id_(unk_id) {}

void WordPiece::append_ids(std::string_view word, std::vector<int64_t>& ids) const {
  const size_t before = ids.size();
  const DoubleArray* pieces = &starting_;
  while (!word.empty()) {
    const auto match = pieces->longest_prefix(word);
    if (match.length == 0) {
      ids.resize(before);
      ids.push_back(unk_id_);
      return;
    }
    ids.push_back(match.value);
    word.remove_prefix(match.length);
    pieces = &continuing_;
  }
}

}  // namespace lockstep::text
