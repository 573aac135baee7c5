// The socket behind MASTER_PORT.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/machines/network.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

struct Listener {
  UniqueFd fd;  ///< close-on-exec
  uint16_t port = 0;
};

/// Listens on 127.0.0.1, at `port` or, for 0, at a free one. Throws Error when the port is taken.
Listener listen_on_loopback(uint16_t port);

/// Listens at a free port of `address`. Throws Error.
Listener listen_on(const Address& address);

}  // namespace lockstep::launcher
