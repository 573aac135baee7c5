// The machine on which the rendezvous is served: which one it is, and the process that serves.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/cli/options.h"
#include "launcher/machines/rendezvous_server.h"
#include "lockstep/base/fd.h"
#include "lockstep/job/address.h"

namespace lockstep::launcher {

/// The secret that the machines of this job share; empty where there is none. Throws FileError for a token
/// file that cannot be used.
std::string read_secret(const NodeOptions& nodes);

/// job::resolve()'s first address of `host`, which `flag` names. Throws Error that names both.
job::Address resolve_given(std::string_view flag, const std::string& host, uint16_t port, double timeout);

/// Where a rendezvous listens.
struct RendezvousListener {
  UniqueFd fd{};                     ///< invalid: nowhere
  std::vector<std::string> hosts{};  ///< addresses at which it takes connections
};

/// IPv4 before IPv6, otherwise in their order: machines that look a name up may be given its addresses in another order.
void put_ipv4_first(std::vector<job::Address>& addresses);

/// Listens where this machine is to serve at the endpoint, which has these addresses: at all of them that are this machine's.
/// Nowhere if it is not. Throws Error if it has to and cannot, and if other machines could not reach it there because a name
/// is one of 127.0.0.0/8 here.
RendezvousListener listen_if_due(const NodeOptions& nodes, const std::vector<job::Address>& addresses);

/// The process that serves.
class RendezvousProcess {
 public:
  /// Starts it. `homes`: it takes the place of a lost one, until a rendezvous answers at one of these hosts. The
  /// calling process must have a single thread. Throws Error.
  RendezvousProcess(const RendezvousListener& listener, const Options& options, const std::string& secret,
                    const std::vector<std::string>& homes = {});
  RendezvousProcess(const RendezvousProcess&) = delete;
  RendezvousProcess& operator=(const RendezvousProcess&) = delete;
  /// It ends by itself once everybody knows that the job is over: waits for that as long as
  /// let_finish() said, and kills it then.
  ~RendezvousProcess();

  /// It has ended by itself, or was killed.
  bool has_ended();
  void let_finish(double seconds) { patience_ = seconds; }

 private:
  pid_t pid_;
  double patience_ = 0;
};

}  // namespace lockstep::launcher
