// Which tokens of a text stay when it is too long.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace lockstep::text {

/// The lengths that `longest_first` of the peer leaves of texts of `first` and `second` tokens when `room`
/// tokens fit: only the longer is cut as long as the shorter fits beside it in half of the room; else each
/// gets half, the longer (the second when equal) the odd one.
std::pair<size_t, size_t> longest_first(size_t first, size_t second, size_t room);

/// The windows of a text of `tokens` tokens when `room` fit, as begin and end: each begins `room - stride` tokens behind the one
/// before it, so that they have `stride` in common, and the last ends with the text. There is one at least. `stride` must be
/// below `room` unless all tokens fit.
std::vector<std::pair<size_t, size_t>> overlapping_windows(size_t tokens, size_t room, size_t stride);

}  // namespace lockstep::text
