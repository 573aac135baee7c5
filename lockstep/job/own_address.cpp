#include "lockstep/job/own_address.h"

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/job/address.h"

namespace lockstep::job {
namespace {

constexpr uint16_t kAnyPort = 9;

std::string address_towards(const std::string& host) {
  try {
    for (const Address& address : look_up(host, kAnyPort)) {
      try {
        return source_address(address).host();
      } catch (const Error&) {
        // Another of its addresses may be within reach.
      }
    }
  } catch (const Error&) {
    // Whoever connects there says why it cannot.
  }
  return {};
}

}  // namespace

std::string own_address(const LaunchEnvironment& launch) {
  if (!launch.local_addr.empty()) return launch.local_addr;
  if (const auto names = env::get(env::kGlooInterface)) {
    const std::string name = names->substr(0, names->find(','));
    const std::string address = address_of_interface(name);
    if (address.empty()) {
      throw ValueError(
          fmt::format("environment variable {}={}: this machine has no such interface with an address",
                      env::kGlooInterface, name));
    }
    return address;
  }
  const std::string address = launch.master_addr.empty() ? "" : address_towards(launch.master_addr);
  return address.empty() ? "127.0.0.1" : address;
}

}  // namespace lockstep::job
