// --stdin all: every rank gets a copy of lockrun's standard input.
#pragma once

#include <string>
#include <vector>

#include "launcher/process/poll_set.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

class StdinCopies {
 public:
  /// A pipe for one more worker; returns the worker's end (close-on-exec). Throws Error.
  UniqueFd add_worker();
  /// lockrun's own ends.
  std::vector<int> write_ends() const;

  /// Adds what it waits for.
  void add_polls(PollSet& polls);

 private:
  struct Copy {
    UniqueFd fd;
    std::string pending{};
  };
  bool wants_more() const;
  void read_some();
  void write_some(Copy& copy) const;

  std::vector<Copy> copies_;
  bool at_end_ = false;
};

}  // namespace lockstep::launcher
