#include "lockstep/job/listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::job {
namespace {

/// A job that was killed keeps its port for a moment.
constexpr double kPortTimeout = 5;

Listener listen_and_tell(const Address& address) {
  Listener listener;
  int error = 0;
  const double deadline = monotonic_seconds() + kPortTimeout;
  do {
    if (error != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    listener.fd = listen_at(address);
    error = listener.fd.valid() ? 0 : errno;
  } while (error == EADDRINUSE && address.port() != 0 && monotonic_seconds() < deadline);
  if (!listener.fd.valid()) {
    const std::string hint =
        error == EADDRINUSE ? "; choose another --master-port, or none for a free one" : "";
    throw Error(fmt::format("cannot listen on {}:{}: {}{}", address.host(), address.port(),
                            std::strerror(error), hint));
  }
  listener.port = local_address(listener.fd.get()).port();
  return listener;
}

}  // namespace

Listener listen_on_loopback(uint16_t port) {
  Address address;
  auto& loopback = reinterpret_cast<sockaddr_in&>(address.storage);
  loopback.sin_family = AF_INET;
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  loopback.sin_port = htons(port);
  address.size = sizeof loopback;
  return listen_and_tell(address);
}

Listener listen_on(const Address& address) {
  Address any_port = address;
  any_port.set_port(0);
  return listen_and_tell(any_port);
}

std::string wait_for_listener(const std::string& host, uint16_t port, std::chrono::milliseconds timeout) {
  constexpr double kLongestTry = 5;
  const double deadline = monotonic_seconds() + std::chrono::duration<double>(timeout).count();
  while (true) {
    std::string why;
    try {
      // The name may come with the job's other parts: tried again, as a refused connection is.
      for (const Address& address : look_up(host, port)) {
        try {
          connect_to(address, std::clamp(deadline - monotonic_seconds(), 0.0, kLongestTry));
          return {};
        } catch (const Error& error) {
          why = error.what();
        }
      }
    } catch (const Error& error) {
      why = error.what();
    }
    if (monotonic_seconds() >= deadline) return why;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace lockstep::job
