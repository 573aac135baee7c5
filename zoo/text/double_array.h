// A static map from byte strings to ids, searched byte by byte: a double-array trie.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::text {

/// Immutable after construction; look-ups are thread-safe.
class DoubleArray {
 public:
  struct Match {
    size_t length = 0;  ///< 0: no key is a prefix
    int32_t value = -1;
  };

  /// Keys must be unique and not empty, values 0 or more. The keys need not outlive the call.
  explicit DoubleArray(std::vector<std::pair<std::string_view, int32_t>> entries);

  /// The longest key that is a prefix of `text`.
  Match longest_prefix(std::string_view text) const {
    Match match;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t child = nodes_[node].base + static_cast<unsigned char>(text[i]);
      if (nodes_[child].parent != node) break;
      node = child;
      if (nodes_[node].value >= 0) match = {i + 1, nodes_[node].value};
    }
    return match;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;      // a free slot's parent
  static constexpr uint32_t kRoot = UINT32_MAX - 1;  // the root's parent
  struct Node {
    uint32_t base = 0;  // children stand at base + byte
    uint32_t parent = kNone;
    int32_t value = -1;
  };
  uint32_t find_base(const std::vector<unsigned char>& bytes);

  std::vector<Node> nodes_;
  uint32_t first_gap_ = 1;    // where the search for one free slot starts
  uint32_t first_space_ = 1;  // and the search for several
};

}  // namespace lockstep::text
