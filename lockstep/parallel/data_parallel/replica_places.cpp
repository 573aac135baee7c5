#include "lockstep/parallel/data_parallel/replica_places.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <set>

#include "lockstep/base/error.h"

namespace lockstep::detail {
namespace {

template <class... Args>
[[noreturn]] void refuse_option(fmt::format_string<Args...> format, Args&&... args) {
  throw ValueError("DataParallel: " + fmt::format(format, std::forward<Args>(args)...));
}

void check_gpu(const char* option, int index) {
  const int count = at::globalContext().hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0;
  if (index >= 0 && index < count) return;
  if (count == 0) {
    refuse_option("{} names GPU {}, but this process sees none; leave {} out for replicas on the CPU", option,
                  index, option);
  }
  refuse_option("{} names GPU {}, but this process sees {}, from 0 to {}", option, index, count, count - 1);
}

at::Device device_named(int index) { return {at::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

template <class Dict>
void check_lies(const char* what, const Dict& tensors, const at::Device& wanted) {
  for (const auto& item : tensors) {
    const at::Device device = item.value().device();
    if (device == wanted) continue;
    if (wanted.is_cpu()) {
      refuse_option("{} {} is on {}, and replicas are on the CPU; name GPUs in device_ids, its own first",
                    what, item.key(), device.str());
    }
    refuse_option("{} {} is on {}; the module must be on the first of device_ids, {}", what, item.key(),
                  device.str(), wanted.str());
  }
}

}  // namespace

DataParallelOptions checked(DataParallelOptions options, const torch::nn::Module& module) {
  if (options.dim < 0) refuse_option("dim is {}; count it from the front, from 0", options.dim);
  std::set<int> seen;
  for (const int index : options.device_ids) {
    check_gpu("device_ids", index);
    if (!seen.insert(index).second)
      refuse_option("device_ids names GPU {} twice; each has one replica", index);
  }
  if (options.output_device) {
    if (options.device_ids.empty()) {
      refuse_option("output_device names GPU {}, but replicas are on the CPU; output_device needs device_ids",
                    *options.output_device);
    }
    check_gpu("output_device", *options.output_device);
  }
  if (!options.device_ids.empty()) options.replicas = static_cast<int>(options.device_ids.size());
  if (options.replicas < 1) refuse_option("replicas is {}; at least 1 is needed", options.replicas);
  if (options.replicas > 1 || !options.device_ids.empty()) {
    const at::Device first = choose_places(options).devices.front();
    check_lies("parameter", module.named_parameters(), first);
    check_lies("buffer", module.named_buffers(), first);
  }
  return options;
}

ReplicaPlaces choose_places(const DataParallelOptions& options) {
  if (options.device_ids.empty()) {
    return {.devices = std::vector<at::Device>(static_cast<size_t>(options.replicas), at::Device(at::kCPU)),
            .output = at::Device(at::kCPU)};
  }
  ReplicaPlaces places{.devices = {},
                       .output = device_named(options.output_device.value_or(options.device_ids.front())),
                       .shares_memory = false};
  for (const int index : options.device_ids) places.devices.push_back(device_named(index));
  return places;
}

std::vector<std::optional<c10::Stream>> ReplicaPlaces::streams() const {
  std::vector<std::optional<c10::Stream>> streams;
  if (is_on_cpu()) return streams;
  for (const at::Device& device : devices) {
    streams.emplace_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return streams;
}

at::Tensor brought_to(const at::Device& device, const at::Tensor& tensor) {
  return !tensor.defined() || tensor.device() == device ? tensor : tensor.to(device);
}

bool take_value(const at::Tensor& parameter, at::Tensor& copy, const at::Device& device) {
  const bool fits = copy.device() == device && copy.sizes() == parameter.sizes() &&
                    copy.strides() == parameter.strides() && copy.scalar_type() == parameter.scalar_type() &&
                    copy.requires_grad() == parameter.requires_grad() && !copy.is_alias_of(parameter);
  if (!fits) {
    const bool requires_grad = parameter.requires_grad();
    copy.set_data(at::empty_like(parameter, at::TensorOptions().device(device)));
    if (copy.requires_grad() != requires_grad) copy.set_requires_grad(requires_grad);
    copy.unsafeGetTensorImpl()->set_version_counter(parameter.unsafeGetTensorImpl()->version_counter());
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  copy.copy_(parameter);
  return !fits;
}

}  // namespace lockstep::detail
