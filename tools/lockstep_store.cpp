// lockstep-store: serves LibTorch's TCPStore on a socket that lockrun holds; started on the first connection
// to it.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <charconv>
#include <cstdio>
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

/// Version and file of the LibTorch that this program runs with, for `lockstep env`.
int print_libtorch() {
  const uint64_t version = aoti_torch_abi_version();  // a byte each for major, minor, patch, from the top
  Dl_info library{};
  ::dladdr(reinterpret_cast<const void*>(&aoti_torch_abi_version), &library);
  std::printf("%d.%d.%d, %s\n", static_cast<int>(version >> 56 & 255), static_cast<int>(version >> 48 & 255),
              static_cast<int>(version >> 40 & 255), library.dli_fname == nullptr ? "?" : library.dli_fname);
  return 0;
}

int serve(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--libtorch") == 0) return print_libtorch();
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
