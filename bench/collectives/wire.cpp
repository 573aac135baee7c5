#include "bench/collectives/wire.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

struct Address {
  sockaddr_un address{};
  socklen_t size = 0;
};

/// Abstract: it begins with a zero byte and is no file.
Address abstract_address(const std::string& name) {
  Address result;
  result.address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof result.address.sun_path - 1);
  std::memcpy(result.address.sun_path + 1, name.data(), length);
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return result;
}

[[noreturn]] void fail(const char* what) {
  throw Error(fmt::format("benchmark: {}: {}", what, std::strerror(errno)));
}

UniqueFd make_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) fail("cannot make a socket");
  return fd;
}

/// False when the other side has hung up before the first byte.
bool receive_or_end(int fd, void* data, size_t bytes) {
  auto* at = static_cast<char*>(data);
  for (size_t left = bytes; left > 0;) {
    const ssize_t got = ::recv(fd, at, left, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != ECONNRESET) fail("cannot read from a rank");
    if (got <= 0) {
      if (left == bytes) return false;
      throw Error("benchmark: the other side ended in the middle of a message");
    }
    at += got;
    left -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

Listener listen_anywhere() {
  uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) fail("getrandom");
  Listener listener{make_socket(), fmt::format("lockstep-bench-{}", random)};
  const Address address = abstract_address(listener.name);
  if (::bind(listener.fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0 ||
      ::listen(listener.fd.get(), 256) != 0) {
    fail("cannot listen");
  }
  return listener;
}

UniqueFd connect_to(const std::string& name) {
  UniqueFd fd = make_socket();
  const Address address = abstract_address(name);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.size) != 0) {
    fail("cannot reach the benchmark that started this rank");
  }
  return fd;
}

void send_bytes(int fd, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) fail("cannot write to the other side");
    at += sent;
    bytes -= static_cast<size_t>(sent);
  }
}

void receive_bytes(int fd, void* data, size_t bytes) {
  if (!receive_or_end(fd, data, bytes)) throw Error("benchmark: the other side has ended");
}

void send_descriptor(int fd, int descriptor) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (::sendmsg(fd, &message, MSG_NOSIGNAL) != 1) fail("cannot pass a descriptor");
}

UniqueFd receive_descriptor(int fd) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != 1) fail("cannot receive a descriptor");
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) fail("expected a descriptor");
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return UniqueFd(descriptor);
}

void send_answer(int fd, const Answer& answer) {
  const uint64_t sizes[2] = {answer.seconds.size(), answer.error.size()};
  send_bytes(fd, sizes, sizeof sizes);
  send_bytes(fd, answer.seconds.data(), answer.seconds.size() * sizeof(double));
  send_bytes(fd, answer.error.data(), answer.error.size());
}

Answer receive_answer(int fd) {
  uint64_t sizes[2] = {};
  receive_bytes(fd, sizes, sizeof sizes);
  Answer answer;
  answer.seconds.resize(sizes[0]);
  answer.error.resize(sizes[1]);
  if (sizes[0] > 0) receive_bytes(fd, answer.seconds.data(), sizes[0] * sizeof(double));
  if (sizes[1] > 0) receive_bytes(fd, answer.error.data(), sizes[1]);
  return answer;
}

std::optional<Command> receive_command(int fd) {
  Command command{};
  if (!receive_or_end(fd, &command, sizeof command)) return std::nullopt;
  return command;
}

}  // namespace lockstep::bench
