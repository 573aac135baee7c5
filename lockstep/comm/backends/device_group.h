// Two engines behind one group: tensors on a device go by one, those in main memory by the other.
#pragma once

#include <memory>

#include "lockstep/comm/process_group/impl.h"

namespace lockstep::backends {

/// As torch.distributed's "cpu:gloo,cuda:nccl". `host` and `device` have the same ranks; the group's name is
/// the device's. Barriers and bytes go by the host's engine.
std::shared_ptr<ProcessGroup::Impl> make_device_group(std::shared_ptr<ProcessGroup::Impl> host,
                                                      std::shared_ptr<ProcessGroup::Impl> device);

}  // namespace lockstep::backends
