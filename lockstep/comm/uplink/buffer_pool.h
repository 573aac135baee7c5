// Memory of transfers that is used again.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/comm/uplink/uplink.h"

namespace lockstep::uplink {

/// Fresh memory of half a megabyte costs its pages, which the kernel clears each time; this one's buffers come back. What an
/// engine still holds after a failure does not. Thread-safe.
class BufferPool {
 public:
  BufferPool();
  /// Uninitialized memory, which returns when nobody has the buffer any more. It may outlive the pool.
  Buffer take(size_t bytes);

 private:
  struct Shelves;
  std::shared_ptr<Shelves> shelves_;
};

}  // namespace lockstep::uplink
