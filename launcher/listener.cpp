#include "launcher/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::launcher {

Listener listen_on_loopback(uint16_t port) {
  const auto fail = [&] {
    const std::string hint =
        errno == EADDRINUSE ? "; choose another --master-port, or none for a free one" : "";
    throw Error("cannot listen on 127.0.0.1:" + std::to_string(port) + ": " + std::strerror(errno) + hint);
  };
  Listener listener;
  listener.fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.fd.valid()) fail();
  const int yes = 1;
  ::setsockopt(listener.fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (::bind(listener.fd.get(), generic, size) != 0 || ::listen(listener.fd.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.fd.get(), generic, &size) != 0) {
    fail();
  }
  listener.port = ntohs(address.sin_port);
  return listener;
}

}  // namespace lockstep::launcher
