#include "lockstep/parallel/ddp/device_check.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::detail {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw ValueError("DistributedDataParallel: " + why); }

}  // namespace

std::optional<at::Device> check_devices(const std::vector<NamedTensor>& parameters,
                                        const DistributedDataParallelOptions& options,
                                        bool is_in_main_memory) {
  bool is_one_device = true;
  for (const NamedTensor& parameter : parameters) {
    const NamedTensor& first = parameters.front();
    const at::Device device = parameter.tensor.device();
    if (device.type() != first.tensor.device().type()) {
      refuse(fmt::format("the parameters must be on one type of device, but {} is on {} and {} on {}",
                         first.name, first.tensor.device().str(), parameter.name, device.str()));
    }
    if (!device.is_cpu() && is_in_main_memory) {
      refuse(
          fmt::format("parameter {} is on {}, but the lockstep backend averages in main memory; use "
                      "init({{.backend = \"nccl\"}}), or gloo",
                      parameter.name, device.str()));
    }
    is_one_device = is_one_device && device == first.tensor.device();
  }
  if (options.device_ids.size() > 1) {
    refuse(
        fmt::format("device_ids may name one device at most, not {}: a process drives one copy of the "
                    "module",
                    options.device_ids.size()));
  }
  if (options.device_ids.empty() && !options.output_device) return std::nullopt;
  const at::Device device = parameters.empty() ? at::Device(at::kCPU) : parameters.front().tensor.device();
  if (options.device_ids.empty() || device.is_cpu() || !is_one_device) {
    refuse(
        "device_ids and output_device are for modules on one GPU, and output_device needs device_ids; leave "
        "them out: the parameters are on " +
        (is_one_device ? device.str() : "several devices"));
  }
  const int index = options.device_ids.front();
  if (device.index() != index) {
    refuse(fmt::format("device_ids names device {}, but the parameters are on {}", index, device.str()));
  }
  if (options.output_device && *options.output_device != index) {
    refuse(fmt::format("output_device is {}, but outputs stay on the module's device, {}",
                       *options.output_device, index));
  }
  return device;
}

void verify_device(const torch::nn::Module& module, at::Device device) {
  const auto verify = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const at::Device own = tensor.device();
    const bool is_any_of_its_type = !device.has_index() || device.is_cpu();  // "cpu:0" is the only one
    if (own.type() == device.type() && (is_any_of_its_type || own.index() == device.index())) return;
    throw Error(fmt::format(
        "DistributedDataParallel::to({}): \"{}\" is on {}, and a wrapped module stays where it is; move the module before you "
        "wrap it",
        device.str(), name, own.str()));
  };
  for (const auto& parameter : module.named_parameters()) verify(parameter.key(), parameter.value());
  for (const auto& buffer : module.named_buffers()) verify(buffer.key(), buffer.value());
}

}  // namespace lockstep::detail
