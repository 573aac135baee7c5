#include "lockstep/job/own_address.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/base/env_names.h"
#include "lockstep/base/error.h"
#include "lockstep/job/address.h"
#include "lockstep/job/interface_choice.h"

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

std::string interface_named_by(const std::string& host) {
  for (const Interface& interface : interfaces()) {
    if (interface.address.host() == host) return interface.name;
  }
  return {};
}

/// `preferred`, if it is on an interface that `rule` allows.
std::string address_by_rule(const std::string& rule, const std::string& preferred) {
  std::vector<std::string> names;
  for (const Interface& interface : interfaces()) {
    if (std::find(names.begin(), names.end(), interface.name) == names.end()) names.push_back(interface.name);
  }
  const std::vector<std::string> allowed = allowed_interfaces(rule, names);
  if (allowed.empty()) {
    throw ValueError(
        fmt::format("environment variable {}={}: no such interface with an address here; this machine has {}",
                    env::kGlooInterface, rule, fmt::join(names, ", ")));
  }
  const std::string of_preferred = preferred.empty() ? "" : interface_named_by(preferred);
  // A list of names is an order of preference; a list of those to avoid says nothing about the others.
  if (of_preferred == allowed.front()) return preferred;
  if (!is_plain_interface_list(rule) && rule.front() == '^') {
    if (std::find(allowed.begin(), allowed.end(), of_preferred) != allowed.end()) return preferred;
    for (const std::string& name : allowed) {
      if (const std::string address = address_of_interface(name); !is_loopback(address)) return address;
    }
  }
  return address_of_interface(allowed.front());
}

}  // namespace

bool is_loopback(const std::string& host) { return host.starts_with("127.") || host == "::1"; }

std::string own_address(const LaunchEnvironment& launch) {
  const auto rule = env::get(env::kGlooInterface);
  if (!launch.local_addr.empty() && !rule) return launch.local_addr;
  std::string address = launch.local_addr;
  if (address.empty() && !launch.master_addr.empty()) address = address_towards(launch.master_addr);
  if (rule) return address_by_rule(*rule, address);
  return address.empty() ? "127.0.0.1" : address;
}

}  // namespace lockstep::job
