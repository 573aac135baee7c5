// The only source that sees ProcessGroupGloo.hpp, through the declarations in gloo_abi/.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <map>
#include <mutex>

#include "lockstep/base/error.h"
#include "lockstep/comm/backends/c10d_group.h"

namespace lockstep::backends {
namespace {

/// One thread and one listening socket for all groups of the process.
std::shared_ptr<::gloo::transport::Device> device_of(const std::string& host) {
  static auto* const devices = new std::map<std::string, std::shared_ptr<::gloo::transport::Device>>();
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& device = (*devices)[host];
  if (!device) device = c10d::ProcessGroupGloo::createDeviceForHostname(host);
  return device;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout, const std::string& host) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  try {
    options->devices.push_back(device_of(host));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  } catch (const std::exception& error) {
    throw CommError("rank " + std::to_string(rank) + ": Gloo could not connect the " + std::to_string(size) +
                    " ranks from " + host + ": " + error.what());
  }
}

}  // namespace lockstep::backends
