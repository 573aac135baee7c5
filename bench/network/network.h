// Machines on this one: network namespaces with a cable each to one switch.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "bench/network/switch.h"

namespace lockstep::bench {

/// Takes this process into a network of its own, in a user namespace of its own unless it is root: what is made afterwards goes
/// with it. For processes with a single thread. Throws Error if the kernel refuses.
void enter_own_network();

/// After enter_own_network(). Machine i has the address 10.88.0.<i + 1> on cable0.
class Network {
 public:
  /// `rate`: as tc writes it; "": no limit. Throws Error.
  Network(int machines, const std::string& rate, const CableSpeed& speed);
  Network(const Network&) = delete;
  /// Ends its processes and the machines with them.
  ~Network();

  static std::string address(int machine);
  /// A command for `sh -c` that runs `command`, words for the shell, on a machine.
  std::string on(int machine, const std::string& command) const;

 private:
  void connect(const std::string& rate, const CableSpeed& speed);
  void stop() noexcept;
  std::vector<pid_t> machines_;  // a process that keeps the namespace
  pid_t switch_ = -1;
};

}  // namespace lockstep::bench
