#include "lockstep/zoo/text/utf8.h"

#include <cstring>

namespace lockstep::text {
namespace {

// Length of the valid sequence that starts at `p`, or 0.
size_t sequence_length(const unsigned char* p, const unsigned char* end) {
  const auto tail = [&](int i, unsigned low = 0x80, unsigned high = 0xBF) {
    return end - p > i && p[i] >= low && p[i] <= high;
  };
  const unsigned first = p[0];
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : 0xBF;
    return tail(1, low, high) && tail(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
    return tail(1, low, high) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

size_t find_invalid_utf8(std::string_view bytes) {
  const auto* begin = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* end = begin + bytes.size();
  const auto* p = begin;
  while (p != end) {
    uint64_t eight = 0;
    if (end - p >= 8 && (std::memcpy(&eight, p, 8), (eight & 0x8080808080808080u) == 0)) {
      p += 8;
      continue;
    }
    const size_t n = sequence_length(p, end);
    if (n == 0) return static_cast<size_t>(p - begin);
    p += n;
  }
  return std::string_view::npos;
}

}  // namespace lockstep::text
