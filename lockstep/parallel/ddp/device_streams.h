// Which device streams a bucket's gradients were written on. Nothing on the CPU.
#pragma once

#include <c10/core/Stream.h>

#include <vector>

namespace lockstep {

/// Work that is put on one stream of a device does not wait for another's. Autograd runs each operation's
/// backward on the stream of its forward, so a bucket may be filled from several.
class DeviceStreams {
 public:
  /// A gradient on `device` was just written on the current stream.
  void note(c10::Device device);
  /// What is put on `device`'s current stream from now on comes after all that was noted; forgets that.
  void join(c10::Device device);

 private:
  std::vector<c10::Stream> streams_;
};

}  // namespace lockstep
