// How many tokens of each text stay when a pair is too long.
#pragma once

#include <cstddef>
#include <utility>

namespace lockstep::text {

/// The lengths that `longest_first` of the peer leaves of texts of `first` and `second` tokens when `room`
/// tokens fit: only the longer is cut as long as the shorter fits beside it in half of the room; else each
/// gets half, the longer (the second when equal) the odd one.
std::pair<size_t, size_t> longest_first(size_t first, size_t second, size_t room);

}  // namespace lockstep::text
