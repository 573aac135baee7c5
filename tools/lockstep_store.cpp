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

uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 || address.sin_family != AF_INET) {
    throw lockstep::ValueError("descriptor " + std::to_string(fd) + " is not a listening IPv4 socket");
  }
  return ntohs(address.sin_port);
}

int serve(int argc, char** argv) {
  int fd = -1;
  const char* text = argc == 2 ? argv[1] : "";
  if (std::from_chars(text, text + std::strlen(text), fd).ec != std::errc()) {
    throw lockstep::ValueError(
        "expected the number of a listening socket; this program is started by lockrun");
  }
  c10d::TCPStoreOptions options;
  options.port = port_of(fd);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = fd;
  const c10d::TCPStore store("127.0.0.1", options);
  // It serves from a thread of its own until lockrun ends this process.
  while (true) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main("lockstep-store", [&] { return serve(argc, argv); });
}
