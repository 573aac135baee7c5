// Whether DistributedDataParallel can work with where a module's parameters are.
#pragma once

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/ddp/named_tensor.h"

namespace lockstep::detail {

/// The device that forward's arguments are brought to; none: they stay. Throws ValueError as Python's
/// DistributedDataParallel does for parameters on several types of devices and for device_ids and
/// output_device that do not fit, and for a device that the backend does not reach.
std::optional<at::Device> check_devices(const std::vector<NamedTensor>& parameters,
                                        const DistributedDataParallelOptions& options,
                                        bool is_in_main_memory);

/// For DistributedDataParallel::to(). Throws Error naming the first parameter or buffer of `module` that is not on `device`.
void verify_device(const torch::nn::Module& module, at::Device device);

}  // namespace lockstep::detail
