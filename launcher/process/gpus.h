// Which NUMA node each GPU hangs on, as the kernel and NVIDIA's driver tell it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::launcher {

/// The NUMA node of each visible GPU, in the order in which programs number them (by PCI address, as with
/// CUDA_DEVICE_ORDER=PCI_BUS_ID, or as `visible` lists them by number or by UUID). Empty where there are no
/// GPUs, or `visible` (CUDA_VISIBLE_DEVICES) names what is not known here. `root` holds proc/ and sys/.
std::vector<int> gpu_numa_nodes(const std::filesystem::path& root, const std::optional<std::string>& visible);

}  // namespace lockstep::launcher
