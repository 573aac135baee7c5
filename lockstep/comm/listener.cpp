#include "lockstep/comm/listener.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "lockstep/base/fd.h"

namespace lockstep {
namespace {

using ListenerClock = std::chrono::steady_clock;

/// The error of one attempt; 0 where it was accepted.
int try_to_connect(const addrinfo& address, ListenerClock::time_point deadline) {
  const UniqueFd connection(
      ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection.valid()) return errno;
  if (::connect(connection.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - ListenerClock::now()).count();
  pollfd event{connection.get(), POLLOUT, 0};
  if (::poll(&event, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 5000))) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(connection.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

std::string wait_for_listener(const std::string& host, int port, std::chrono::milliseconds timeout) {
  const auto deadline = ListenerClock::now() + timeout;
  while (true) {
    std::string why;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    // The name may come with the job's other parts: tried again, as a refused connection is.
    const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(status == 0 ? found : nullptr,
                                                              [](addrinfo* all) {
                                                                if (all != nullptr) ::freeaddrinfo(all);
                                                              });
    if (status != 0) why = ::gai_strerror(status);
    for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
      const int error = try_to_connect(*address, deadline);
      if (error == 0) return "";
      why = std::strerror(error);
    }
    if (ListenerClock::now() >= deadline) return why;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace lockstep
