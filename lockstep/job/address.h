// Addresses of machines, and sockets between them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep::job {

/// An IPv4 or IPv6 address with a port.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  std::string host() const;  ///< as numbers, without the port
  uint16_t port() const;
  void set_port(uint16_t port);
};

/// The addresses of `host` (a name, or an address as numbers). Blocks for as long as the name servers take.
/// Throws Error with the resolver's reason.
std::vector<Address> look_up(const std::string& host, uint16_t port);

/// Looks up `host` in a child process, so that this blocks for `timeout` seconds at most. For processes with
/// a single thread.
std::vector<Address> resolve(const std::string& host, uint16_t port, double timeout);

/// The machine answers, and nobody listens there.
class RefusedError : public Error {
 public:
  using Error::Error;
};

/// A socket connected to `address`. Throws Error with the system's reason, after `timeout` seconds at most.
UniqueFd connect_to(const Address& address, double timeout);

/// A listening socket at `address`, close-on-exec; an invalid one, with errno, when that is impossible.
UniqueFd listen_at(const Address& address);

/// The address of this machine that packets to `address` come from. Sends none. Throws Error.
Address source_address(const Address& address);

Address local_address(int fd);
Address peer_address(int fd);

struct Interface {
  std::string name;
  Address address;
};

/// The addresses of all interfaces of this machine.
std::vector<Interface> interfaces();

/// All addresses of this machine, as numbers.
std::vector<std::string> local_addresses();

/// Names this start of the kernel. Containers of a machine have the same one.
std::string boot_id();
/// Names the network that this process sees: those with the same one reach each other by 127.0.0.1.
std::string network_id();

/// Whether `address` belongs to an interface of this machine.
bool is_local(const Address& address);
/// The interface with that address, or "".
std::string interface_of(const Address& address);
/// The interface's address as numbers, IPv4 before IPv6, or "".
std::string address_of_interface(const std::string& name);

}  // namespace lockstep::job
