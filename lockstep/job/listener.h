// Sockets that listen, here and elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "lockstep/base/fd.h"
#include "lockstep/job/address.h"

namespace lockstep::job {

struct Listener {
  UniqueFd fd;  ///< close-on-exec
  uint16_t port = 0;
};

/// Listens on 127.0.0.1, at `port` or, for 0, at a free one. Throws Error when the port is taken.
Listener listen_on_loopback(uint16_t port);

/// Listens at a free port of `address`. Throws Error.
Listener listen_on(const Address& address);

/// Blocks until something accepts connections at host:port, or until the deadline. Returns "" or why nothing
/// did.
std::string wait_for_listener(const std::string& host, uint16_t port, std::chrono::milliseconds timeout);

}  // namespace lockstep::job
