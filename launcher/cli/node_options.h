// Which machines take part in the job, and where they meet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/cluster.h"

namespace lockstep::launcher {

class Arguments;
struct Machine;
struct Options;

/// Ports of the rendezvous where none is given: of a static one, and of c10d.
inline constexpr uint16_t kStaticPort = 29500, kDynamicPort = 29400;

struct NodeOptions {
  int min = 1, max = 1;
  bool numbered = true;     ///< static rendezvous: every machine has a number
  int node_rank = 0;        ///< when numbered
  std::string host{};       ///< where the machines meet
  std::string host_flag{};  ///< that names it; empty: none does
  uint16_t port = 0;
  std::string local_addr{};  ///< empty: the address by which this machine reaches `host`
  std::string token_file{};  ///< empty: no secret, or `secret`
  std::string secret{};      ///< that the lockrun which starts those on other machines has chosen
  std::optional<bool>
      is_host{};  ///< whether this machine serves the rendezvous; none: if `host` is its address
  // --rdzv-conf, in seconds.
  double join_timeout = 0;       ///< for the endpoint, and for the least number of machines
  double last_call_timeout = 0;  ///< for more than the least number
  double keep_alive_interval = 0;
  int keep_alive_max_attempt = 0;  ///< as many missed, and a machine counts as lost
  // A list of hosts, on which this lockrun starts others.
  std::vector<Host> hosts{};     ///< those that get ranks, in the order of ranks; empty: there is no list
  std::optional<size_t> here{};  ///< this machine's place in it
  uint16_t ssh_port = 0;         ///< 0: ssh's own choice
  std::string ssh_identity{};    ///< empty: ssh's own choice

  bool several() const { return max > 1; }
};

/// Reads the flags about machines into `options` (nodes, nproc_per_node for lists of hosts, rdzv_id,
/// master_port, warnings). Throws ValueError.
void parse_node_options(const Arguments& line, const Machine& machine, Options& options);

}  // namespace lockstep::launcher
