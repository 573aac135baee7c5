#include "lockstep/parallel/ddp/device_streams.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace lockstep {

void DeviceStreams::note(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (std::find(streams_.begin(), streams_.end(), current) == streams_.end()) streams_.push_back(current);
}

void DeviceStreams::join(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::Stream current = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  for (const c10::Stream& stream : streams_) {
    if (stream == current) continue;
    c10::Event written(device.type());
    written.record(stream);
    written.block(current);
  }
  streams_.clear();
}

}  // namespace lockstep
