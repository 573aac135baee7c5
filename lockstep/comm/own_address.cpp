#include "lockstep/comm/own_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep {
namespace {

std::string text_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  return ::getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0 ? host : "";
}

std::string address_of_interface(const std::string& name) {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, ::freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family || name != entry->ifa_name)
        continue;
      return text_of(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  }
  throw ValueError("environment variable GLOO_SOCKET_IFNAME=" + name +
                   ": this machine has no such interface with an address");
}

/// Sends nothing: connecting a datagram socket only chooses the way. Empty when there is none.
std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &raw) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> found(raw, ::freeaddrinfo);
  for (const addrinfo* entry = raw; entry != nullptr; entry = entry->ai_next) {
    const UniqueFd fd(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (fd.valid() && ::connect(fd.get(), entry->ai_addr, entry->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0) {
      return text_of(reinterpret_cast<const sockaddr*>(&own), size);
    }
  }
  return {};
}

}  // namespace

std::string own_address(const LaunchEnvironment& launch) {
  if (!launch.local_addr.empty()) return launch.local_addr;
  if (const auto names = env::get("GLOO_SOCKET_IFNAME")) {
    return address_of_interface(names->substr(0, names->find(',')));
  }
  const std::string address = launch.master_addr.empty() ? "" : address_towards(launch.master_addr);
  return address.empty() ? "127.0.0.1" : address;
}

}  // namespace lockstep
