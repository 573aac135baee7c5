#include "lockstep/job/address.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/job/child_process.h"

namespace lockstep::job {
namespace {

int ask_resolver(const std::string& host, uint16_t port, int flags, std::vector<Address>& addresses) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  for (const addrinfo* entry = found; error == 0 && entry != nullptr; entry = entry->ai_next) {
    Address address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    addresses.push_back(address);
  }
  if (found != nullptr) ::freeaddrinfo(found);
  return error;
}

[[noreturn]] void look_up_in_child(int fd, const std::string& host, uint16_t port) {
  std::vector<Address> addresses;
  const int error = ask_resolver(host, port, 0, addresses);
  bool written = ::write(fd, &error, sizeof error) == sizeof error;
  for (const Address& address : addresses) written = written && ::write(fd, &address, sizeof address) > 0;
  ::_exit(written ? 0 : 1);
}

/// Reads `size` bytes before `deadline`.
bool read_all(int fd, void* to, size_t size, double deadline) {
  char* at = static_cast<char*>(to);
  while (size > 0) {
    pollfd wait{fd, POLLIN, 0};
    const double left = deadline - monotonic_seconds();
    if (left <= 0 || ::poll(&wait, 1, static_cast<int>(left * 1000) + 1) <= 0) return false;
    const ssize_t got = ::read(fd, at, size);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

template <typename Get>
Address address_by(Get get, int fd) {
  Address address;
  address.size = sizeof address.storage;
  get(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size);
  return address;
}

}  // namespace

std::string Address::host() const {
  char text[NI_MAXHOST] = "?";  // with the scope of a link-local address
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
  constexpr std::string_view mapped = "::ffff:";
  return std::string_view(text).starts_with(mapped) ? text + mapped.size() : text;
}

uint16_t Address::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void Address::set_port(uint16_t port) {
  (storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                 : reinterpret_cast<sockaddr_in&>(storage).sin_port) = htons(port);
}

std::vector<Address> look_up(const std::string& host, uint16_t port) {
  std::vector<Address> addresses;
  const int error = ask_resolver(host, port, 0, addresses);
  if (addresses.empty()) throw Error(::gai_strerror(error));
  return addresses;
}

std::vector<Address> resolve(const std::string& host, uint16_t port, double timeout) {
  std::vector<Address> addresses;
  if (ask_resolver(host, port, AI_NUMERICHOST, addresses) == 0) return addresses;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::strerror(errno));
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t pid = fork_helper("lockrun-resolve");
  if (pid == 0) look_up_in_child(write_end.get(), host, port);
  write_end.reset();
  const double deadline = monotonic_seconds() + timeout;
  int error = 0;
  const bool answered = read_all(read_end.get(), &error, sizeof error, deadline);
  Address address;
  while (answered && error == 0 && read_all(read_end.get(), &address, sizeof address, deadline)) {
    addresses.push_back(address);
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  if (!answered) throw Error("the name server does not answer");
  if (addresses.empty()) throw Error(::gai_strerror(error));
  return addresses;
}

UniqueFd connect_to(const Address& address, double timeout) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) throw Error(std::strerror(errno));
  const int yes = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  int error = 0;
  bool answered = true;
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0)
    error = errno;
  if (error == EINPROGRESS) {
    pollfd wait{fd.get(), POLLOUT, 0};
    answered = ::poll(&wait, 1, static_cast<int>(timeout * 1000)) > 0;
    socklen_t size = sizeof error;
    if (answered) ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  // Where nobody listens at a port of the ephemeral range, the kernel may connect a socket with itself.
  if (error == 0 && answered) {
    const Address own = local_address(fd.get()), other = peer_address(fd.get());
    if (own.port() == other.port() && own.host() == other.host()) error = ECONNREFUSED;
  }
  if (!answered) throw Error("no answer");
  if (error == ECONNREFUSED) throw RefusedError(std::strerror(error));
  if (error != 0) throw Error(std::strerror(error));
  return fd;
}

UniqueFd listen_at(const Address& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fd;
  const int yes = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

Address source_address(const Address& address) {
  const UniqueFd fd(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
    throw Error(std::strerror(errno));
  }
  return local_address(fd.get());
}

Address local_address(int fd) { return address_by(::getsockname, fd); }
Address peer_address(int fd) { return address_by(::getpeername, fd); }

std::vector<Interface> interfaces() {
  std::vector<Interface> found;
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) return found;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, ::freeifaddrs);
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Address address;
    address.size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.size);
    found.push_back({entry->ifa_name, address});
  }
  return found;
}

std::vector<std::string> local_addresses() {
  std::vector<std::string> hosts;
  for (const Interface& interface : interfaces()) hosts.push_back(interface.address.host());
  return hosts;
}

std::string boot_id() {
  try {
    const std::string text = read_file("/proc/sys/kernel/random/boot_id");
    return text.substr(0, text.find('\n'));
  } catch (const FileError&) {
    return "-";
  }
}

std::string network_id() {
  std::error_code none;
  return fmt::format("{}/{}", boot_id(), std::filesystem::read_symlink("/proc/self/ns/net", none).string());
}

bool is_local(const Address& address) { return !interface_of(address).empty(); }

std::string interface_of(const Address& address) {
  for (const Interface& interface : interfaces()) {
    if (interface.address.host() == address.host()) return interface.name;
  }
  return {};
}

std::string address_of_interface(const std::string& name) {
  std::string of_ipv6;
  for (const Interface& interface : interfaces()) {
    if (interface.name != name) continue;
    if (interface.address.storage.ss_family == AF_INET) return interface.address.host();
    if (of_ipv6.empty()) of_ipv6 = interface.address.host();
  }
  return of_ipv6;
}

}  // namespace lockstep::job
