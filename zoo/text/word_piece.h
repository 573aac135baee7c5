// WordPiece: a word becomes the longest pieces of the vocabulary, from its start to its end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/zoo/text/double_array.h"

namespace lockstep::text {

/// Immutable after construction.
class WordPiece {
 public:
  using Vocab = std::vector<std::pair<std::string, int32_t>>;

  /// `vocab` must have unique tokens. A piece that does not start a word carries `continuing_subword_prefix`.
  WordPiece(const Vocab& vocab, int32_t unk_id, const std::string& continuing_subword_prefix);

  /// Appends the ids of `word`'s pieces, or the unknown id alone where no piece fits. An empty word appends
  /// none.
  void append_ids(std::string_view word, std::vector<int64_t>& ids) const;

  /// append_ids() that also appends the offset in `word` at which each piece ends.
  void append_pieces(std::string_view word, std::vector<int64_t>& ids, std::vector<size_t>& ends) const;

  int32_t unk_id() const { return unk_id_; }

 private:
  /// Calls on_piece(id, end) for each; whether all of the word is made of pieces.
  template <class OnPiece>
  bool split(std::string_view word, const OnPiece& on_piece) const;

  DoubleArray starting_;
  DoubleArray continuing_;
  int32_t unk_id_;
};

}  // namespace lockstep::text
