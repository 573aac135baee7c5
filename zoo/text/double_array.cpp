#include "lockstep/zoo/text/double_array.h"

#include <algorithm>

namespace lockstep::text {

DoubleArray::DoubleArray(std::vector<std::pair<std::string_view, int32_t>> entries) : nodes_(257) {
  std::sort(entries.begin(), entries.end());
  nodes_[0].parent = kRoot;

  // A node and the entries below it, which share its first `depth` bytes.
  struct Pending {
    uint32_t node;
    size_t begin, end, depth;
  };
  std::vector<Pending> pending{{0, 0, entries.size(), 0}};
  std::vector<unsigned char> bytes;
  std::vector<size_t> starts;
  while (!pending.empty()) {
    const auto [node, first, end, depth] = pending.back();
    pending.pop_back();
    size_t begin = first;
    if (begin < end && entries[begin].first.size() == depth) nodes_[node].value = entries[begin++].second;
    bytes.clear();
    starts.clear();
    for (size_t i = begin; i < end; ++i) {
      const auto byte = static_cast<unsigned char>(entries[i].first[depth]);
      if (bytes.empty() || bytes.back() != byte) {
        bytes.push_back(byte);
        starts.push_back(i);
      }
    }
    starts.push_back(end);
    if (bytes.empty()) continue;  // the slots that a leaf's base reaches have other parents
    const uint32_t base = find_base(bytes);
    nodes_[node].base = base;
    for (size_t i = 0; i < bytes.size(); ++i) {
      nodes_[base + bytes[i]].parent = node;
      pending.push_back({base + bytes[i], starts[i], starts[i + 1], depth + 1});
    }
  }
}

uint32_t DoubleArray::find_base(const std::vector<unsigned char>& bytes) {
  const auto fits = [&](uint32_t slot) {
    const uint32_t base = slot - bytes[0];
    if (base + 256 >= nodes_.size()) nodes_.resize(base + 257);
    return std::all_of(bytes.begin(), bytes.end(),
                       [&](unsigned char byte) { return nodes_[base + byte].parent == kNone; });
  };
  // Only children fill the gaps from the start. Brothers look where little is taken yet: behind the place
  // where the last of them had to try often, or building would take quadratic time.
  constexpr int kManyTries = 32;
  uint32_t& start = bytes.size() == 1 ? first_gap_ : first_space_;
  uint32_t slot = std::max<uint32_t>(start, bytes[0]);
  for (int tries = 0; !fits(slot); ++slot) {
    if (++tries >= kManyTries) start = slot;
  }
  if (bytes.size() == 1) start = std::max(start, slot);
  return slot - bytes[0];
}

}  // namespace lockstep::text
