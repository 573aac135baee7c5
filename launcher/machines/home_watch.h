// Asks a rendezvous' endpoint, where nobody served, again and again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "lockstep/base/fd.h"

namespace lockstep::launcher {

class HomeWatch {
 public:
  /// Starts a process that asks once a second: looking up a name may block. For processes with a single
  /// thread. Throws Error.
  HomeWatch(const std::string& host, uint16_t port, const std::string& secret, const std::string& question);
  HomeWatch(const HomeWatch&) = delete;
  HomeWatch& operator=(const HomeWatch&) = delete;
  ~HomeWatch();

  /// Readable when the answer was yes.
  int fd() const { return ended_.get(); }

 private:
  pid_t pid_;
  UniqueFd ended_;
};

}  // namespace lockstep::launcher
