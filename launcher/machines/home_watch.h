// Asks where a rendezvous may serve again, the endpoint for one, again and again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

class HomeWatch {
 public:
  /// Starts a process that asks once a second: looking up a name may block. For processes with a single
  /// thread. Throws Error.
  HomeWatch(const std::vector<std::string>& hosts, uint16_t port, const std::string& secret,
            const std::string& question);
  HomeWatch(const HomeWatch&) = delete;
  HomeWatch& operator=(const HomeWatch&) = delete;
  ~HomeWatch();

  /// Readable when the answer was yes.
  int fd() const { return ended_.get(); }
  /// The host that has answered, once fd() is readable.
  std::string take_answer();

 private:
  std::vector<std::string> hosts_;
  pid_t pid_;
  UniqueFd ended_;
};

}  // namespace lockstep::launcher
