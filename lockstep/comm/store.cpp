#include "lockstep/comm/store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/launch_environment.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Store> connect_store(const LaunchEnvironment& launch,
                                              std::chrono::milliseconds timeout) {
  if (launch.master_addr.empty() || launch.master_port == 0) {
    throw ValueError(
        "MASTER_ADDR and MASTER_PORT are missing: the ranks have no place to meet; start with lockrun or "
        "torchrun");
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.master_port);
  options.isServer = !launch.agent_store && launch.rank == 0;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(launch.master_addr, options);
    // torchrun's workers share its own store, each attempt under a name of its own.
    const std::string prefix = launch.agent_store ? "/worker/attempt_" + std::to_string(launch.restart_count)
                                                  : std::string("/default");
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  } catch (const std::exception& error) {
    throw CommError("rank " + std::to_string(launch.rank) + ": no store at MASTER_ADDR:MASTER_PORT " +
                    launch.master_addr + ":" + std::to_string(launch.master_port) + ": " + error.what());
  }
}

}  // namespace lockstep
