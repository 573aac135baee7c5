// Ranges of a buffer, and how the ranks divide one.
#pragma once

#include <cstddef>

namespace lockstep::shm {

/// A range of a buffer, in bytes.
struct Range {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

/// What both contain; empty where that is nothing.
Range intersection(Range a, Range b);

/// The slice of `whole` that `member` of `size` ranks owns: whole lines.
Range slice_of_range(Range whole, int member, int size);

}  // namespace lockstep::shm
