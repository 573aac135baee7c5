#include "lockstep/shm/paths/ranges.h"

#include <algorithm>

#include "lockstep/shm/layout.h"

namespace lockstep::shm {

Range intersection(Range a, Range b) {
  const size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

Range slice_of_range(Range whole, int member, int size) {
  const size_t lines = (whole.size() + kLine - 1) / kLine;
  const auto start = [&](size_t m) {
    return std::min(whole.begin + lines * m / static_cast<size_t>(size) * kLine, whole.end);
  };
  return {start(static_cast<size_t>(member)), start(static_cast<size_t>(member) + 1)};
}

}  // namespace lockstep::shm
