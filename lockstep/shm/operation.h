// A collective under way, as one rank sees it. Used by Group alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/shm/layout.h"
#include "lockstep/shm/reduce.h"

namespace lockstep::shm {

/// A part of what a rank sends, and where this rank wants it.
struct Copy {
  int source;            ///< rank
  size_t source_offset;  ///< in bytes, in what that rank sends
  void* destination;
  size_t bytes;
};

/// A part of a buffer, in elements.
struct Part {
  size_t first, count;
};

/// How the bytes go from rank to rank. Follows from all posts, so that every rank takes the same.
enum class Path : uint8_t {
  undecided,
  inlined,   ///< in the posts
  staged,    ///< copied through staging buffers
  direct,    ///< read, and for reductions written, where they lie
  windowed,  ///< block by block through each rank's window
};

struct Operation {
  uint64_t sequence = 0;
  Announcement what{};
  Path path = Path::undecided;
  std::byte* data = nullptr;     // what this rank sends, and where a reduction leaves its result
  std::byte* window = nullptr;   // this rank's, in its arena
  std::byte* staging = nullptr;  // this rank's copy of data, when it travels so
  std::byte* output = nullptr;   // reduce_scatter's; null where it leaves `parts` of data reduced
  const Part* parts = nullptr;
  size_t part_count = 0;
  const Copy* copies = nullptr;
  size_t copy_count = 0;
  const std::function<std::vector<Copy>()>* late_copies = nullptr;
  uint64_t flight_number = 0;
  bool own_part_done = false;
  bool complete = false;

  // Of the windowed path, in blocks.
  uint32_t blocks = 0;     // of whoever sends most
  uint32_t filled = 0;     // copied into this rank's window
  uint32_t processed = 0;  // taken from everybody's windows
  uint32_t emptied = 0;    // results copied out of this rank's window

  size_t element() const { return element_size(static_cast<DType>(what.dtype)); }
  /// The most that any rank sends; 0 where only the copies will tell.
  size_t bytes() const { return what.count * element(); }
  bool is_all_reduce() const { return what.kind == OpKind::all_reduce; }
  /// Reduced together by all ranks, each a slice.
  bool is_sliced() const { return is_all_reduce() || what.kind == OpKind::reduce; }
  int root() const { return static_cast<int>(what.root); }
};

/// A part of a buffer, in bytes.
struct Range {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

/// What both contain; empty where that is nothing.
Range intersection(Range a, Range b);

/// The part of `whole` that falls to `member` of `size` ranks: whole lines.
Range slice_of_range(Range whole, int member, int size);

/// Chunks that a slice of `bytes` is reduced in, and none of them claimed yet, as Slice keeps it.
size_t chunk_count(size_t bytes);
uint64_t unclaimed_chunks(Range slice);

}  // namespace lockstep::shm
