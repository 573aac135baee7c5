#include "lockstep/zoo/text/truncation.h"

#include <algorithm>

namespace lockstep::text {

std::pair<size_t, size_t> longest_first(size_t first, size_t second, size_t room) {
  if (first + second <= room) return {first, second};
  const bool first_is_longer = first > second;
  size_t shorter = std::min(first, second);
  size_t longer = shorter > room ? shorter : std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = shorter + room % 2;
  }
  return first_is_longer ? std::pair(longer, shorter) : std::pair(shorter, longer);
}

std::vector<std::pair<size_t, size_t>> overlapping_windows(size_t tokens, size_t room, size_t stride) {
  std::vector<std::pair<size_t, size_t>> windows;
  for (size_t begin = 0;; begin += room - stride) {
    const size_t end = std::min(begin + room, tokens);
    windows.emplace_back(begin, end);
    if (end == tokens) return windows;
  }
}

}  // namespace lockstep::text
