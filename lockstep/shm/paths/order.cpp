#include "lockstep/shm/paths/order.h"

#include "lockstep/base/extent.h"

namespace lockstep::shm {
namespace {

using base::Extent;

Extent extent_of(const Copy& copy) { return Extent::of(copy.destination, copy.bytes); }

/// What the peers take, or this rank on their behalf.
Extent read_by(const Operation& operation) { return Extent::of(operation.data, operation.what.sent); }

/// Around all that `operation` writes into this rank's memory.
Extent written_by(const Operation& operation) {
  if (operation.output != nullptr) return Extent::of(operation.output, operation.output_bytes);
  Extent whole = operation.is_reduction() ? read_by(operation) : Extent{};
  for (size_t i = 0; i < operation.copy_count; ++i) whole = whole.joined(extent_of(operation.copies[i]));
  return whole;
}

/// Copies may leave gaps, in which another operation may write.
bool writes(const Operation& operation, Extent place) {
  if (operation.copy_count == 0) return written_by(operation).meets(place);
  for (size_t i = 0; i < operation.copy_count; ++i) {
    if (extent_of(operation.copies[i]).meets(place)) return true;
  }
  return false;
}

bool write_one_place(const Operation& a, const Operation& b) {
  if (b.copy_count == 0) return writes(a, written_by(b));
  for (size_t i = 0; i < b.copy_count; ++i) {
    if (writes(a, extent_of(b.copies[i]))) return true;
  }
  return false;
}

/// It took what it sends along when it was posted.
bool has_read(const Operation& posted) {
  const bool is_copied = posted.what.memory == Memory::post || posted.what.memory == Memory::staging;
  return is_copied && !posted.is_reduction();
}

}  // namespace

bool must_follow(const Operation& later, const Operation& earlier) {
  if (later.together != 0 && later.together == earlier.together) return false;
  const Extent written_first = written_by(earlier), written_then = written_by(later);
  const Extent read_first = has_read(earlier) ? Extent{} : read_by(earlier), read_then = read_by(later);
  return (written_first.meets(written_then) && write_one_place(earlier, later)) ||
         (written_first.meets(read_then) && writes(earlier, read_then)) ||
         (read_first.meets(written_then) && writes(later, read_first));
}

}  // namespace lockstep::shm
