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

  int32_t unk_id() const { return unk_id_; }

 private:
  DoubleArray starting_;
  DoubleArray continuing_;
  int32_t unk_id_;
};

}  // namespace lockstep::text
