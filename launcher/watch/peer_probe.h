// Which machines of the job this one reaches, asked when ranks hang: a cable or a firewall that parts two machines does not show
// at the rendezvous, which both reach.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

/// Another machine: what it is called here, and where its lockrun listens.
struct ProbeTarget {
  int group_rank = 0;
  std::string address{};
  uint16_t port = 0;
};

/// Tries all at once in a child process, so that nobody waits for it: a connection that is made or refused shows that the
/// machine is there.
class PeerProbe {
 public:
  /// Starts it. The calling process must have a single thread. Throws Error.
  explicit PeerProbe(const std::vector<ProbeTarget>& targets);
  PeerProbe(const PeerProbe&) = delete;
  PeerProbe& operator=(const PeerProbe&) = delete;
  /// Ends it if it still runs.
  ~PeerProbe();

  int fd() const { return fd_.get(); }
  /// Takes what is there; true when all of it is in unreached().
  bool read_some();
  /// Group ranks of the machines that have not answered within 3 s.
  std::vector<int> unreached() const;

 private:
  UniqueFd fd_;
  pid_t pid_ = -1;
  std::string text_;
};

}  // namespace lockstep::launcher
