// lockstep-store: serves LibTorch's TCPStore on a socket that lockrun holds; started on the first connection
// to it.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/main.h"

namespace {

struct Place {
  std::string host;
  uint16_t port;
};

/// Where the socket listens.
Place place_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char host[INET6_ADDRSTRLEN] = {};
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    if (address.ss_family == AF_INET) {
      const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
      ::inet_ntop(AF_INET, &v4.sin_addr, host, sizeof host);
      return {host, ntohs(v4.sin_port)};
    }
    if (address.ss_family == AF_INET6) {
      const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
      ::inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof host);
      return {host, ntohs(v6.sin6_port)};
    }
  }
  throw lockstep::ValueError("descriptor " + std::to_string(fd) + " is not a listening socket");
}

int serve(int argc, char** argv) {
  int fd = -1;
  const char* text = argc == 2 ? argv[1] : "";
  if (std::from_chars(text, text + std::strlen(text), fd).ec != std::errc()) {
    throw lockstep::ValueError(
        "expected the number of a listening socket; this program is started by lockrun");
  }
  c10d::TCPStoreOptions options;
  const Place place = place_of(fd);
  options.port = place.port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = fd;
  const c10d::TCPStore store(place.host, options);
  // It serves from a thread of its own until lockrun ends this process.
  while (true) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("lockstep-store", [&] { return serve(argc, argv); });
}
