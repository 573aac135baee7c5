#include "lockstep/job/descriptor_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>

#include "lockstep/base/error.h"

namespace lockstep::job {
namespace {

using Clock = std::chrono::steady_clock;

struct SocketName {
  sockaddr_un socket{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&socket); }
};

/// Names of any length: an address has room for 107 bytes.
SocketName name_of(const std::string& name) {
  SocketName address;
  address.socket.sun_family = AF_UNIX;
  std::string text = name;
  constexpr size_t kRoom = sizeof address.socket.sun_path - 1;
  if (text.size() > kRoom) text = "lockstep/" + std::to_string(std::hash<std::string>()(name));
  // A leading zero byte makes it abstract.
  std::memcpy(address.socket.sun_path + 1, text.data(), text.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

bool is_of_this_user(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::getuid();
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left < 0 ? 0 : left > 60000 ? 60000 : static_cast<int>(left);
}

union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

bool send_descriptor(int connection, int fd) {
  char byte = 1;
  iovec data{&byte, 1};
  Control control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::sendmsg(connection, &message, MSG_NOSIGNAL) == 1;
}

}  // namespace

void hand_out_descriptor(const std::string& name, int fd, int receivers, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const SocketName address = name_of(name);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid() || ::bind(listener.get(), address.get(), address.length) != 0 ||
      ::listen(listener.get(), receivers + 1) != 0) {
    throw ValueError("cannot hand out the shared segment at " + name + ": " + std::strerror(errno) +
                     (errno == EADDRINUSE
                          ? "; does another job of this name run here? Start it with lockrun, or set "
                            "MASTER_ADDR and MASTER_PORT"
                          : ""));
  }
  int served = 0;
  while (served < receivers) {
    pollfd event{listener.get(), POLLIN, 0};
    if (::poll(&event, 1, milliseconds_until(deadline)) > 0) {
      const UniqueFd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (connection.valid() && is_of_this_user(connection.get()) && send_descriptor(connection.get(), fd))
        ++served;
    } else if (Clock::now() >= deadline) {
      throw TimeoutError(std::to_string(receivers - served) + " of " + std::to_string(receivers) +
                         " other ranks of this node have not called init() within " +
                         std::to_string(timeout.count()) + " ms");
    }
  }
}

UniqueFd receive_descriptor(const std::string& name, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const SocketName address = name_of(name);
  while (true) {
    const UniqueFd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connection.valid() && ::connect(connection.get(), address.get(), address.length) == 0 &&
        is_of_this_user(connection.get())) {
      char byte = 0;
      iovec data{&byte, 1};
      Control control{};
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = control.bytes;
      message.msg_controllen = sizeof control.bytes;
      pollfd event{connection.get(), POLLIN, 0};
      if (::poll(&event, 1, milliseconds_until(deadline)) > 0 &&
          ::recvmsg(connection.get(), &message, MSG_CMSG_CLOEXEC) == 1) {
        const cmsghdr* const header = CMSG_FIRSTHDR(&message);
        if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
          return UniqueFd(fd);
        }
      }
    }
    if (Clock::now() >= deadline) {
      throw TimeoutError("the first rank of this node has not called init() within " +
                         std::to_string(timeout.count()) + " ms (nobody answers at " + name + ")");
    }
    // Nobody is there yet; once per job.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace lockstep::job
