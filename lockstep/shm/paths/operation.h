// A collective under way, as one rank sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/shm/layout.h"
#include "lockstep/shm/reduce/reduce.h"

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

/// How the bytes go from rank to rank. Follows from all posts, so that every rank takes the same. Each has a
/// file of its own.
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
  std::byte* output = nullptr;   // reduce_scatter's, or late_copies'; null: `parts` of data get the result
  size_t output_bytes = 0;
  const Part* parts = nullptr;
  size_t part_count = 0;
  const Copy* copies = nullptr;
  size_t copy_count = 0;
  const std::function<std::vector<Copy>()>* late_copies = nullptr;
  uint64_t flight_number = 0;
  uint64_t together = 0;  // Group::set_together()'s; 0: alone
  bool own_part_done = false;
  bool complete = false;

  // The windowed path uses these counts of blocks.
  uint32_t blocks = 0;     // of whoever sends most
  uint32_t filled = 0;     // copied into this rank's window
  uint32_t processed = 0;  // taken from everybody's windows
  uint32_t emptied = 0;    // results copied out of this rank's window

  size_t element() const { return element_size(static_cast<DType>(what.dtype)); }
  /// The most that any rank sends; 0 where only the copies will tell.
  size_t bytes() const { return what.count * element(); }
  bool is_reduction() const { return is_sliced() || what.kind == OpKind::reduce_scatter; }
  bool is_all_reduce() const { return what.kind == OpKind::all_reduce; }
  /// Reduced together by all ranks, each a slice.
  bool is_sliced() const { return is_all_reduce() || what.kind == OpKind::reduce; }
  /// Does a reduction by slices end with all of the result in `rank`'s data?
  bool leaves_result_at(int rank) const { return is_all_reduce() || (is_sliced() && root() == rank); }
  int root() const { return static_cast<int>(what.root); }
  bool has_path() const { return path != Path::undecided; }
};

}  // namespace lockstep::shm
