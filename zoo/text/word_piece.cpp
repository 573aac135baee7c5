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

template <class OnPiece>
bool WordPiece::split(std::string_view word, const OnPiece& on_piece) const {
  const DoubleArray* pieces = &starting_;
  for (size_t end = 0; end < word.size();) {
    const auto match = pieces->longest_prefix(word.substr(end));
    if (match.length == 0) return false;
    end += match.length;
    on_piece(match.value, end);
    pieces = &continuing_;
  }
  return true;
}

void WordPiece::append_ids(std::string_view word, std::vector<int64_t>& ids) const {
  const size_t before = ids.size();
  if (split(word, [&](int32_t id, size_t) { ids.push_back(id); })) return;
  ids.resize(before);
  ids.push_back(unk_id_);
}

void WordPiece::append_pieces(std::string_view word, std::vector<int64_t>& ids,
                              std::vector<size_t>& ends) const {
  const size_t ids_before = ids.size(), ends_before = ends.size();
  const bool is_known = split(word, [&](int32_t id, size_t end) {
    ids.push_back(id);
    ends.push_back(end);
  });
  if (is_known) return;
  ids.resize(ids_before);
  ends.resize(ends_before);
  ids.push_back(unk_id_);
  ends.push_back(word.size());
}

}  // namespace lockstep::text
