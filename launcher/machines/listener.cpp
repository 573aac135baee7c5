#include "launcher/machines/listener.h"

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

Listener listen_and_tell(const Address& address) {
  Listener listener{listen_at(address)};
  if (!listener.fd.valid()) {
    const std::string hint =
        errno == EADDRINUSE ? "; choose another --master-port, or none for a free one" : "";
    throw Error("cannot listen on " + address.host() + ":" + std::to_string(address.port()) + ": " +
                std::strerror(errno) + hint);
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

}  // namespace lockstep::launcher
